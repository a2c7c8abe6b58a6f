"""What the command prints where: colour on a terminal, none in a pipe or with NO_COLOR; refusals in a sentence."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Grader
from fill import fill, write
from typer.main import get_command

from grader import cli
from grader.course import Course

LESSON = "01_small"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def course(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small course with one learner who has one exercise right."""
    root = shutil.copytree(built("small"), tmp_path_factory.mktemp("terminal") / "small")
    right = {exercise.id: exercise.reference for exercise in Course(root).lesson(LESSON).exercises[:1]}
    notebook = fill(root / "exercises" / LESSON / f"{LESSON}.ipynb", right)
    place = root / "submitted" / "one" / LESSON
    place.mkdir(parents=True)
    write(notebook, place / f"{LESSON}.ipynb")
    return root


def on_a_terminal(*words: object, status: int = 0, **environment: str) -> str:
    """All that a command writes to a terminal of 100 columns, stderr too."""
    main, second = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    variables |= {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    command = [sys.executable, "-m", "grader", *map(str, words)]
    process = subprocess.Popen(command, stdin=second, stdout=second, stderr=second, env=variables, cwd=ROOT)
    os.close(second)
    written = b""
    try:
        while select.select([main], [], [], 300)[0]:
            try:
                chunk = os.read(main, 65536)
            except OSError:  # the other side is closed
                break
            if not chunk:
                break
            written += chunk
        assert process.wait(timeout=60) == status
    finally:
        process.kill()
        os.close(main)
    return written.decode()


def test_a_terminal_gets_colour_and_progress(course: Path) -> None:
    text = on_a_terminal("--course", course, "grade", course / "submitted", "--force")
    assert COLOUR.search(text)
    assert re.search(rf"Grading {LESSON} .*0/1.* notebooks", text)


def test_no_color_is_honoured_on_a_terminal(course: Path) -> None:
    text = on_a_terminal("--course", course, "grade", course / "submitted", "--force", NO_COLOR="1")
    coloured = [
        found for found in COLOUR.findall(text) if re.search(r"[\[;](3[0-7]|38|9[0-7]|4[0-7]|48|10[0-7])\b", found)
    ]
    assert not coloured
    assert "1 notebook in" in text


def test_a_pipe_gets_plain_lines_and_no_progress(course: Path, grader: Grader) -> None:
    for variables in ({"NO_COLOR": "1"}, {"NO_COLOR": "", "TERM": "xterm-256color"}):
        done = grader("--course", course, "grade", course / "submitted", "--force", **variables)
        assert done.returncode == 0, done.stderr
        assert not ESCAPE.search(done.stdout + done.stderr)
        assert "Grading" not in done.stderr
        assert "\r" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["grade", "nowhere"], "There is no folder nowhere. Pass the folder that contains"),
        (["grade", "exercises"], "No submission in exercises. Expected: <learner>/<lesson>/<lesson>.ipynb"),
        (["grade", "submitted", "--lesson", "99_none"], "There is no lesson 99_none. Lessons with exercises: 01_small"),
        (["grade", "submitted", "--json", "/proc/none/results.json"], "cannot be written to /proc/none/results.json"),
        (["check", "nothing.ipynb"], "There is no notebook nothing.ipynb. Lessons with exercises: 01_small"),
        (["check", "1"], "There is no notebook 1. Did you mean 01_small?"),
        (["check", "small"], "There is no notebook small. Did you mean 01_small?"),
        (["solution", "01"], "There is no lesson 01. Did you mean 01_small?"),
        (["check", "course.toml"], "No lesson is called course.toml. Rename the notebook after its lesson: 01_small"),
        (["report", "none.json", "--as", "csv"], "none.json cannot be read: No such file or directory."),
        (["prove", "99_none"], "There is no lesson 99_none."),
        (["build", "99_none"], "There is no lesson 99_none. Lessons: 01_small."),
        (["check", "1_small"], "There is no notebook 1_small. Did you mean 01_small?"),
        (["check", "work/01_small"], "There is no notebook work/01_small. Did you mean 01_small?"),
        (["solution", "01_smal"], "There is no lesson 01_smal. Did you mean 01_small?"),
        (["grade", "course.toml"], "course.toml is a file. Pass the folder that contains"),
        (
            ["grade", "submitted/one"],
            "If submitted/one is the folder of one learner, pass the folder that contains it.",
        ),
        (["--course", "/proc", "build"], "/proc: no course.toml in this folder or in one above it. Change to"),
        (["--course", "/proc/none", "build"], "There is no folder /proc/none. Pass the folder of a course"),
        (["preview", "99_none"], "There is no lesson 99_none."),
        (["preview", LESSON, "--html", "/proc/none/page.html"], "/proc/none/page.html"),
        (["bundle", "99_none", "--out", "out"], "99_none"),
        (["bundle", "--out", "/proc/none/out"], "/proc/none/out"),
        (["bundle", "--gradescope", "99_none", "--out", "out.zip"], "99_none"),
        (["collect", "none.csv"], "none.csv"),
        (["import", "none.ipynb"], "none.ipynb"),
        (["import", "course.toml"], "course.toml"),
        (["new", "exercise", "a-b", "--lesson", "99_none", "--to", "../own"], "99_none"),
        (["new", "exercise", "a b", "--lesson", LESSON, "--to", "../own"], "a b"),
        (["instructor"], "There is no nbgrader_config.py in"),
        (["grade", "submitted", "--gradebook"], "There is no nbgrader_config.py in"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    course: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command runs in this process, which saves its start."""
    monkeypatch.chdir(course)
    monkeypatch.setattr("sys.argv", ["grader", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    out, told = capfd.readouterr()
    assert caught.value.code == 2, told
    assert said in told
    assert told.count("\n") == 1
    assert not out


def checked(course: Path, *words: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Exit status, stdout and stderr of `grader check` on the learner's notebook."""
    notebook = str(course / "submitted" / "one" / LESSON / f"{LESSON}.ipynb")
    monkeypatch.setattr("sys.argv", ["grader", "--course", str(course), "check", notebook, *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code, *capfd.readouterr()


NAMES = "small-double  Double", "small-mean  A loss", "small-total  Another loss"


@pytest.mark.parametrize(
    ("typed", "first", "listed"),
    [
        ("nothing", "There is no exercise nothing. ", NAMES),
        ("loss", "2 exercises match loss. ", NAMES[1:]),
        ("", "3 exercises match . ", NAMES),
    ],
)
def test_an_exercise_that_is_not_one_is_refused_with_a_list(
    course: Path, typed: str, first: str, listed: Any, capfd: Any, monkeypatch: Any
) -> None:
    status, out, told = checked(course, "--exercise", typed, capfd=capfd, monkeypatch=monkeypatch)
    assert (status, out) == (2, "")
    assert told.startswith(first)
    assert tuple(line.strip() for line in told.splitlines()[1:]) == listed


@pytest.mark.parametrize("typed", ["small-double", "DOUB", "a loss", "small-mean", "Mean"])
def test_one_exercise_is_checked_by_its_id_its_title_or_a_part(
    course: Path, tmp_path: Path, typed: str, capfd: Any, monkeypatch: Any
) -> None:
    document = tmp_path / "result.json"
    words = ("--exercise", typed, "--json", str(document))
    status, out, _ = checked(course, *words, capfd=capfd, monkeypatch=monkeypatch)
    [result] = json.loads(document.read_text())["results"]
    double = "doub" in typed.casefold()
    assert {check["exercise"] for check in result["checks"]} == {"small-double" if double else "small-mean"}
    assert (status, result["score"], result["max_score"]) == ((0, 3, 3) if double else (1, 0, 3))
    assert ("Full points: Double (3)" if double else "Not attempted: A loss\n") in out


def test_the_help_lists_every_verb_and_names_arguments_without_types(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for words, wanted in (
        ([], [f"  {name} " for name in get_command(cli.app).commands]),  # type: ignore[attr-defined]
        (["check"], ["check [OPTIONS] NOTEBOOK\n", "  NOTEBOOK  A notebook"]),
        (["carry"], ["carry [OPTIONS] [NN_topic]...\n", "  NN_topic  Only"]),
        (["new", "exercise"], ["exercise [OPTIONS] ID\n"]),
    ):
        monkeypatch.setattr("sys.argv", ["grader", *words, "--help"])
        with pytest.raises(SystemExit):
            cli.main()
        text = capfd.readouterr().out
        assert [part for part in wanted if part not in text] == []
        assert "<" not in text


@pytest.mark.parametrize("verb", ["build", "lab"])
def test_a_folder_that_cannot_be_written_is_told(course: Path, grader: Grader, tmp_path: Path, verb: str) -> None:
    spoilt = shutil.copytree(course, tmp_path / "course")
    shutil.rmtree(spoilt / "exercises" if verb == "build" else spoilt / "work", ignore_errors=True)
    place = spoilt / ("exercises" if verb == "build" else "work")
    place.write_text("a file where a folder is wanted")
    done = grader("--course", spoilt, verb, *(["--no-open"] if verb == "lab" else []))
    assert done.returncode == 2, done.stderr
    assert done.stderr == f"{place / LESSON}: Not a directory.\n"
