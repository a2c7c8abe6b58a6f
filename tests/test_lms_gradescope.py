"""The autograder zip, run as Gradescope lays its files out: results.json is always there and shows nothing hidden."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import COURSES, ROOT, Grader
from fill import fill
from grader_fault import FAULTS, broken

from grader.course import Course
from grader.lms import gradescope
from grader.lms.gradescope import NotOneNotebook

LESSON = "01_small"
EXERCISES = Course(COURSES / "small").lesson(LESSON).exercises
RIGHT = {exercise.id: exercise.reference for exercise in EXERCISES}
RELEASED = COURSES / "small" / "exercises" / LESSON / f"{LESSON}.ipynb"
# Stands for the image's Python: the packages are there already, and what pip is asked for is noted.
PYTHON = """#!/bin/sh
case "$1 $2" in
"-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
"-m pip") echo "$@" >>"$AUTOGRADER_ROOT/pip" ;;
*) PYTHONPATH="$AUTOGRADER_ROOT/source/package" exec PYTHON "$@" ;;
esac
"""


def notebook(answers: dict[str, str]) -> bytes:
    return json.dumps(fill(RELEASED, answers)).encode()


class Image:
    """A container as that platform makes it: source/, submission/, results/ and the two scripts at its root."""

    def __init__(self, root: Path, zipped: Path) -> None:
        self.root = root
        for name in ("source", "submission", "results", "system"):
            (root / name).mkdir(parents=True)
        with zipfile.ZipFile(zipped) as archive:
            archive.extractall(root / "source")
            self.modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
        for name in ("run_autograder", "setup.sh"):
            shutil.copy(root / "source" / name, root / name)
        (root / "system" / "python3").write_text(PYTHON.replace("exec PYTHON", f"exec {sys.executable}"))
        (root / "system" / "python3").chmod(0o755)
        users = {"users": [{"id": 7, "email": "one@localhost", "name": "One"}], "assignment": {"title": "x"}}
        (root / "submission_metadata.json").write_text(json.dumps(users))

    def start(self, script: str, **variables: str) -> subprocess.Popen[str]:
        around = {"PATH": f"{self.root}/system:{os.environ['PATH']}", "HOME": str(self.root), **variables}
        command = ["bash", str(self.root / script)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, env={**around, "AUTOGRADER_ROOT": str(self.root)}, **pipes)

    def run(self, script: str, **variables: str) -> tuple[int, str]:
        with self.start(script, **variables) as running:
            said, _ = running.communicate(timeout=300)
        return running.returncode, said

    def grade(self, files: dict[str, bytes], **variables: str) -> tuple[dict[str, Any], str]:
        """Run a submission of these files: results.json, and what instructors see."""
        shutil.rmtree(self.root / "submission")
        for name, content in files.items():
            path = self.root / "submission" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (self.root / "results" / "results.json").unlink(missing_ok=True)
        status, said = self.run("run_autograder", **variables)
        assert status == 0, said
        return self.results(), said

    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "results" / "results.json").read_text())
        assert found["stdout_visibility"] == "hidden"
        return found


@pytest.fixture(scope="module")
def zipped(built: Callable[[str], Path], grader: Grader, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gradescope") / "autograder.zip"
    done = grader("--course", built("small"), "bundle", "--gradescope", LESSON, "--out", path)
    assert done.returncode == 0, done.stderr
    assert "It contains hidden checks and answers: for Gradescope only." in done.stdout
    return path


@pytest.fixture(scope="module")
def image(zipped: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """One that setup.sh has been run in."""
    made = Image(tmp_path_factory.mktemp("image") / "autograder", zipped)
    status, said = made.run("setup.sh")
    assert status == 0, said
    assert "01_small: 9 of 9 points for the course's own answers." in said
    return made


def test_setup_installs_the_pinned_versions_and_closes_the_course(image: Image) -> None:
    assert (image.root / "pip").read_text() == "-m pip install --quiet -c requirements.lock ./package\n"
    assert (image.root / "source" / "requirements.lock").read_bytes() == (ROOT / "requirements.lock").read_bytes()
    assert image.modes["setup.sh"] & 0o111
    assert image.modes["run_autograder"] & 0o111
    for path in (image.root / "source" / "course", image.root / "source" / "course" / "solutions" / f"{LESSON}.py"):
        assert not path.stat().st_mode & 0o077


def test_a_submission_under_any_name_is_graded(image: Image) -> None:
    wrong = {**RIGHT, "small-mean": "def loss(x):\n    return (x**2).sum()\n"}
    results, said = image.grade({"my work/final (2).ipynb": notebook(wrong), "notes.txt": b"x"})
    tests = {test["extra_data"]["id"]: test for test in results["tests"]}
    assert sum(test["score"] for test in tests.values()) == 6
    assert tests["small-mean-example"]["visibility"] == "visible"
    assert tests["small-mean-program"]["visibility"] == "after_published"
    assert "Perhaps: Sums where a mean is asked for." in tests["small-mean-example"]["output"]
    assert "6 of 9 points" in said


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines more than by limits")
@pytest.mark.parametrize("level", ["full", "landlock"])
def test_a_submission_cannot_read_the_course(image: Image, level: str) -> None:
    places = [image.root / name for name in ("source/course/solutions/01_small.py", "submission_metadata.json")]
    reads = f"found = []\nfor place in {[str(place) for place in places]}:\n"
    reads += "    try:\n        found.append(open(place).read())\n    except OSError as problem:\n"
    reads += "        found.append(type(problem).__name__)\n"
    tells = f"{reads}def double(x):\n    raise ValueError(repr(found))\n"
    results, said = image.grade({"x.ipynb": notebook({"small-double": tells})}, GRADER_CONFINE_AT_MOST=level)
    if f"confined: {level}." not in said:
        pytest.skip(f"this machine refuses {level}: {said}")
    kind = "FileNotFoundError" if level == "full" else "PermissionError"
    assert f"['{kind}', '{kind}']" in results["tests"][0]["output"]
    assert "inputs.rng()" not in json.dumps(results) + said


def test_where_nothing_confines_it_refuses_unless_told(image: Image) -> None:
    results, said = image.grade({"x.ipynb": notebook(RIGHT)}, GRADER_CONFINE_AT_MOST="limits")
    assert results["output"] == (
        "Your submission was not graded: this autograder cannot run learners' code safely. "
        "This is not a verdict on your work. Please contact your instructor."
    )
    assert not {"score", "tests"} & results.keys(), "no grade at all, and no zero"
    assert "Nothing was graded in this container. docs/gradescope.md lists" in said


def test_faults_of_ones_own_are_for_instructors_alone(image: Image) -> None:
    text = image.root / "source" / "course" / "solutions" / f"{LESSON}.py"
    kept = text.read_text()
    try:
        text.write_text(kept.replace('# %% hidden="small-double"', '# %% hiden="small-double"'))
        results, said = image.grade({"x.ipynb": notebook(RIGHT)})
    finally:
        text.write_text(kept)
    assert results["output"] == (
        "Your submission was not graded: the autograder failed (CourseError). "
        "This is not a verdict on your work. Please contact your instructor."
    )
    assert "`hiden`" in said
    assert not {"score", "tests"} & results.keys()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_grader_is_no_zero(image: Image, fault: str) -> None:
    text = image.root / "source" / "course" / "solutions" / f"{LESSON}.py"
    before = text.read_text()
    try:
        text.write_text(broken(before, fault))
        results, said = image.grade({"x.ipynb": notebook(RIGHT)})
    finally:
        text.write_text(before)
    assert not {"score", "tests"} & results.keys()
    assert results["output"] == (
        "Your submission was not graded: the autograder failed. This is not a verdict on your work. "
        "Please contact your instructor."
    )
    assert FAULTS[fault].said in said


def test_when_it_is_stopped_or_was_never_set_up_there_are_results_too(image: Image, moments: random.Random) -> None:
    wanted = "the autograder was stopped before it was done. This is not a verdict on your work."
    python = image.root / "venv" / "bin" / "python"
    python.rename(image.root / "away")
    try:
        results, said = image.grade({"x.ipynb": notebook(RIGHT)})
    finally:
        (image.root / "away").rename(python)
    assert wanted in results["output"]
    assert not {"score", "tests"} & results.keys()
    assert "setup.sh did not finish" in said

    (image.root / "results" / "results.json").unlink()
    (image.root / "submission" / "x.ipynb").write_bytes(notebook({"small-double": "while True:\n    pass\n"}))
    with image.start("run_autograder") as running:
        until = time.monotonic() + 60
        while not (image.root / "results" / "results.json").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(moments.uniform(0, 1.5))
        os.kill(running.pid, signal.SIGKILL)
    assert wanted in image.results()["output"]
    assert not {"score", "tests"} & image.results().keys()


def test_an_overlay_goes_with_the_course_that_it_extends(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "solutions").mkdir(parents=True)
    below = COURSES / "small"
    (own / "course.toml").write_text(f'extends = "{below}"\n')
    (own / ".secret").write_text("ours")
    hidden = '"""Is ours."""\ncompare(ask(double, 3.0), 6.0)\n'
    (own / "solutions" / f"{LESSON}.py").write_text(f'# %% hidden="small-double" name="ours" points=1\n{hidden}')
    for name, content in gradescope.files(Course(own), LESSON).items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(content)
    there = Course(tmp_path / "source" / "course")
    assert there.base is not None
    assert there.base.root == tmp_path / "source" / "below"
    assert there.lesson(LESSON).points == 10
    assert (there.root / ".secret").read_text() == "ours"


# Which notebook it is.

IDS = set(RIGHT)


def zip_of(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


OURS, OTHER = notebook({}), b'{"cells": []}'
WHOLE = zip_of(**{"x.ipynb": OURS})
DAMAGED = WHOLE[:200] + b"\xff" * 100 + WHOLE[300:]


@pytest.mark.parametrize(
    "files",
    [
        {"x.ipynb": OURS},
        {"a/b/X.IPYNB": OURS, "readme.md": b""},
        {"x.ipynb": OURS, "other.ipynb": OTHER, "broken.ipynb": b"{"},
        {"x.ipynb": OURS, ".ipynb_checkpoints/x-checkpoint.ipynb": OURS, "__MACOSX/._x.ipynb": b"\0"},
        {"all.zip": zip_of(**{"work/x.ipynb": OURS, "__MACOSX/work/._x.ipynb": b"\0", "data.bin": b"\0" * 99})},
    ],
)
def test_the_notebook_is_found(tmp_path: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert gradescope.submitted_notebook(tmp_path, IDS, LESSON) == (OURS, {})


def test_one_notebook_alone_is_taken_whatever_it_holds(tmp_path: Path) -> None:
    (tmp_path / "x.ipynb").write_bytes(b"{")
    assert gradescope.submitted_notebook(tmp_path, IDS, LESSON) == (b"{", {})


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "Your submission contains no notebook. Submit 01_small.ipynb."),
        ({"x.py": b""}, "Your submission contains no notebook"),
        (
            {"a.ipynb": OURS, "b.ipynb": OURS},
            "Your submission contains 2 notebooks (a.ipynb, b.ipynb), and several of them",
        ),
        ({"a.ipynb": OTHER, "b.ipynb": OTHER}, "and none of them is of 01_small. Submit only 01_small.ipynb."),
        ({"\x1b[2J.ipynb": OTHER, "b.ipynb": OTHER}, "(\\x1b[2J.ipynb, b.ipynb)"),
        ({"a.zip": b"PK"}, "a.zip is not a readable zip."),
        ({"a.zip": zip_of(x=b"")}, "Your submission contains no notebook"),
        ({"a.zip": zip_of(**{"x.ipynb": b"0" * (21 << 20)})}, "x.ipynb is larger than 20 MB. Clear its outputs"),
        (
            {"a.zip": zip_of(**{"x.ipynb": OURS * 99}).replace(b"cell_type", b"\0" * 9)[:-900] + zip_of()[-22:]},
            "notebook",
        ),
        ({"x.ipynb": b"0" * (21 << 20)}, "x.ipynb is larger than 20 MB."),
    ],
)
def test_what_is_not_one_notebook_is_told(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(NotOneNotebook) as problem:
        gradescope.submitted_notebook(tmp_path, IDS, LESSON)
    assert said in str(problem.value)


def packed(*names: str, content: bytes = OTHER, how: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(stream, "w", how) as archive:
        for name in names:  # zipfile warns of a name that is there twice
            archive.writestr(name, content)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("names", "size", "said"),
    [
        ([f"{n:05}.ipynb" for n in range(60_000)], 0, "a zip of more than 5,000 files"),
        ([f"{n:05}.txt" for n in range(5_001)], 0, "a zip of more than 5,000 files"),
        ([f"{n}.ipynb" for n in range(201)], 0, "more than 200 notebooks"),
        (["a/" * 51 + "x.ipynb"], 0, "folders more than 50 deep"),
        (["x.ipynb", "x.ipynb"], 0, "a zip with two files of the same name (x.ipynb)"),
        ([f"{n}.ipynb" for n in range(6)], 19 << 20, "more than 100 MB of notebooks"),
    ],
    ids="entries files notebooks depth names bytes".split(),
)
def test_a_zip_beyond_a_limit_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], size: int, said: str
) -> None:
    (tmp_path / "all.zip").write_bytes(packed(*names, content=b" " * size, how=zipfile.ZIP_DEFLATED))
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *args, **options: pytest.fail("a file in it was read"))
    with pytest.raises(NotOneNotebook) as problem:
        gradescope.submitted_notebook(tmp_path, IDS, LESSON)
    assert str(problem.value) == f"You submitted {said}. Submit only the notebook."


def test_a_list_that_claims_to_be_short_is_not_read_either(tmp_path: Path) -> None:
    content = bytearray(packed(*(f"{n:05}.ipynb" for n in range(60_000))))
    end = len(content) - zipfile.sizeEndCentDir  # type: ignore[attr-defined]
    content[end + 8 : end + 12] = bytes([1, 0, 1, 0])
    (tmp_path / "all.zip").write_bytes(content)
    with pytest.raises(NotOneNotebook, match="a zip of more than 5,000 files"):
        gradescope.submitted_notebook(tmp_path, IDS, LESSON)


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_python_unpacks_without_a_bound_is_refused(tmp_path: Path, how: int) -> None:
    (tmp_path / "all.zip").write_bytes(packed("x.ipynb", content=b" " * (19 << 20), how=how))
    with pytest.raises(NotOneNotebook, match=r"x.ipynb is damaged, or compressed in an unsupported way\."):
        gradescope.submitted_notebook(tmp_path, IDS, LESSON)


def test_more_zips_than_a_few_and_deep_folders_are_refused(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.zip").write_bytes(WHOLE)
    with pytest.raises(NotOneNotebook, match="more than 5 zips"):
        gradescope.submitted_notebook(tmp_path, IDS, LESSON)
    (tmp_path / "x.ipynb").write_bytes(OURS)
    assert gradescope.submitted_notebook(tmp_path, IDS, LESSON) == (OURS, {})
    (tmp_path / ("a/" * 51)).mkdir(parents=True)
    with pytest.raises(NotOneNotebook, match="folders more than 50 deep"):
        gradescope.submitted_notebook(tmp_path, IDS, LESSON)


def test_more_folders_than_a_course_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zip that Gradescope has unpacked may consist of empty folders."""
    monkeypatch.setattr(gradescope, "MAX_FILES", 50)
    for number in range(60):
        (tmp_path / f"{number}").mkdir()
    with pytest.raises(NotOneNotebook, match="more than 50 folders"):
        gradescope.submitted_notebook(tmp_path, IDS, LESSON)


def test_a_zip_of_a_whole_checkout_and_a_large_notebook_in_it_cost_nothing(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(6_000):
            archive.writestr(f"course/.git/objects/{number}", b"")
        archive.writestr("course/large.ipynb", b" " * (21 << 20))
        archive.writestr(f"course/work/{LESSON}.ipynb", OURS)
    (tmp_path / "all.zip").write_bytes(stream.getvalue())
    assert gradescope.submitted_notebook(tmp_path, IDS, LESSON) == (OURS, {})


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "x.ipynb").write_bytes(OURS)
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission" / "x.ipynb").symlink_to(secret / "x.ipynb")
    (tmp_path / "submission" / "folder").symlink_to(secret)
    with pytest.raises(NotOneNotebook, match="Your submission contains no notebook"):
        gradescope.submitted_notebook(tmp_path / "submission", IDS, LESSON)
