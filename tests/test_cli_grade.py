"""What an instructor sees of `grader grade`: each lesson once it is done, only what needs a look, and a summary."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Grader
from fill import fill, write
from test_cli_terminal import on_a_terminal

from grader.cli.grade import ClassView
from grader.core.result import CheckResult, Result
from grader.course import Course
from grader.grading.batch import Entry
from grader.sandbox.accelerators import ON_CPUS

ALONE, TOGETHER = "01_alone", "02_together"
RIGHT, UNTOUCHED = None, {}
WRONG = {"alone-double": "def double(x):\n    return x + 2\n"}
CLASS = {
    "ann": {ALONE: RIGHT, TOGETHER: RIGHT},
    "bob": {ALONE: WRONG, TOGETHER: RIGHT},
    "cy": {ALONE: "empty"},
    "dee": {ALONE: RIGHT, TOGETHER: UNTOUCHED},
    "eve": {TOGETHER: UNTOUCHED},
}
COUNT = 8
DETAILS = re.compile(rf"^(\w+)  ({ALONE}|{TOGETHER})  ", re.M)
SECONDS = re.compile(r" *[\d.]+│$|[\d.]+ s\.", re.M)


@pytest.fixture(scope="module")
def course(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = shutil.copytree(built("two_sizes"), tmp_path_factory.mktemp("class") / "course")
    for learner, lessons in CLASS.items():
        for lesson, answers in lessons.items():
            path = root / "submitted" / learner / lesson / f"{lesson}.ipynb"
            if answers is RIGHT:
                answers = {one.id: one.reference for one in Course(root).lesson(lesson).exercises}
            if answers == "empty":
                path.parent.mkdir(parents=True)
                path.write_bytes(b"")
            else:
                write(fill(root / "exercises" / lesson / f"{lesson}.ipynb", answers), path)
    return root


def command(course: Path, *options: object) -> list[str]:
    return ["--course", str(course), "grade", str(course / "submitted"), *map(str, options)]


@pytest.fixture(scope="module")
def first(course: Path, grader: Grader) -> subprocess.CompletedProcess[str]:
    """The first run, into a pipe."""
    done = grader(*command(course, "--json", course / "results.json"))
    assert done.returncode == 1, done.stderr
    return done


def assert_in_order(text: str, *parts: str) -> None:
    """Each part is there once, in this order."""
    assert [text.count(part) for part in parts] == [1] * len(parts), text
    places = [text.index(part) for part in parts]
    assert places == sorted(places), text


def test_lessons_come_in_order_with_their_details_then_the_summary(first: subprocess.CompletedProcess[str]) -> None:
    assert_in_order(
        first.stdout,
        "1 alone-double", "bob  01_alone  0 of 3 points", "cy  01_alone  not graded",
        "1 together-spread", "dee  02_together  0 of 3 points", "eve  02_together  0 of 3 points",
        "summary", "8 notebooks in ",
    )  # fmt: skip
    assert first.stdout.count("○ Not attempted: every exercise\n") == 2


def test_learners_with_full_points_are_in_tables_alone(first: subprocess.CompletedProcess[str]) -> None:
    assert DETAILS.findall(first.stdout) == [("bob", ALONE), ("cy", ALONE), ("dee", TOGETHER), ("eve", TOGETHER)]
    assert first.stdout.count("│ann ") == first.stdout.count("│dee ") == 2


def test_the_summary_counts_by_lesson(first: subprocess.CompletedProcess[str]) -> None:
    """The mean is that of the notebooks that could be graded."""
    table = first.stdout.partition("summary")[2]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in table.splitlines() if line[:1] == "│"]
    assert [row[:5] for row in rows] == [[ALONE, "4", "2 of 3", "2", "1"], [TOGETHER, "4", "1.5 of 3", "2", "0"]]
    total = re.search(r"8 notebooks in ([\d.]+) s", table)
    assert total
    assert 0 < sum(float(row[5]) for row in rows) <= float(total[1]) + 0.1


def test_a_pipe_gets_a_line_for_each_lesson_on_stderr(first: subprocess.CompletedProcess[str]) -> None:
    """Two notebooks are graded at once: those of the second lesson may be done before the last of the first."""
    lines = [re.sub(r"\d+ s\.", "N s.", line) for line in first.stderr.splitlines()]
    assert [re.sub(r"[4-7] of 8", "K of 8", lines[0]), *lines[1:]] == [
        "01_alone is graded. K of 8 notebooks after N s.",
        "02_together is graded. 8 of 8 notebooks after N s.",
        "Not graded, or only in part: cy/01_alone. The reasons are above.",
    ]


def test_results_as_json_are_in_the_order_of_folders(course: Path, first: subprocess.CompletedProcess[str]) -> None:
    results = json.loads((course / "results.json").read_text())["results"]
    seen = [(result["learner"], result["lesson"]) for result in results]
    assert seen == [(learner, lesson) for learner, lessons in CLASS.items() for lesson in lessons]


def test_a_second_run_shows_the_same_and_says_that_it_is_cached(
    course: Path, grader: Grader, first: subprocess.CompletedProcess[str]
) -> None:
    """All but the file that is empty, which is read again."""
    again = grader(*command(course))
    assert SECONDS.sub("", again.stdout).startswith(SECONDS.sub("", first.stdout).rstrip())
    assert "were graded before and have not changed. --force grades them again." in again.stdout


def screen(written: str) -> list[str]:
    """The lines that a terminal shows in the end, with those that went off its top."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.startswith("\x1b"):
            row -= int(part[2:-1] or 1) if part.endswith("A") else 0
            lines[row] = "" if part.endswith("K") else lines[row]
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


def test_a_terminal_shows_a_bar_meanwhile_and_nothing_twice(
    course: Path, first: subprocess.CompletedProcess[str]
) -> None:
    """In the end the screen has what a pipe gets, and nothing of the bar."""
    words = command(course, "--force", "--jobs", 1)
    written = on_a_terminal(*words, status=1, COLUMNS="160", NO_COLOR="1")
    assert [re.search(rf"Grading {one} .* notebooks", written) is None for one in CLASS["ann"]] == [False, False]
    assert re.search(r"[1-7]/8 notebooks 0:00:\d\d", written)
    shown = "\n".join(line for line in screen(written) if line)
    wanted = first.stdout + first.stderr.splitlines()[-1]
    wanted = "\n".join(line.rstrip() for line in wanted.splitlines() if line.strip())
    assert SECONDS.sub("", shown) == SECONDS.sub("", wanted)


def test_grading_goes_on_when_nobody_reads_its_output(course: Path, first: object, tmp_path: Path) -> None:
    """As into `head`: the results are written all the same."""
    words = [sys.executable, "-m", "grader", *command(course, "--json", tmp_path / "results.json")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment) as running:
        assert running.stdout
        assert running.stderr
        running.stdout.close()
        assert "Traceback" not in running.stderr.read()
    assert len(json.loads((tmp_path / "results.json").read_text())["results"]) == COUNT


def test_a_lesson_waits_for_those_before_it(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its last result may arrive before the last one of the lesson before; stopped then, what is graded is shown."""
    entries = [Entry(course / name, name, lesson) for name in ("ann", "bob") for lesson in (ALONE, TOGETHER)]
    view = ClassView(Course(course), entries, ON_CPUS)
    assert [(entry.lesson, entry.learner) for entry in view.entries] == [
        (ALONE, "ann"), (ALONE, "bob"), (TOGETHER, "ann"), (TOGETHER, "bob"),
    ]  # fmt: skip

    def add(entry: Entry) -> str:
        check = CheckResult("c", f"{entry.lesson}-e", "t", "passed", 1.0, 1.0)
        view.add(entry, Result(entry.learner, entry.lesson, (check,), max_score=1.0))
        return capsys.readouterr().out

    ann_alone, bob_alone, ann_together, bob_together = view.entries
    assert [add(entry) for entry in (ann_alone, ann_together, bob_together)] == [""] * 3
    view.close()
    assert_in_order(capsys.readouterr().out, "1 01_alone-e", "1 02_together-e")
    assert_in_order(add(bob_alone), "1 01_alone-e", "1 02_together-e")
    view.close()
    assert capsys.readouterr().out.startswith("summary")
