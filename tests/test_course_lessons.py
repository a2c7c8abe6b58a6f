"""The course itself: every lesson runs, and the checks tell right answers from wrong ones.

Locally, a test of a lesson is skipped when it passed before and nothing that it depends on has changed since.
"""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import nbformat
import pytest
import surfaces
from conftest import ROOT
from unchanged import Record

from grader.checks.execute import execute
from grader.core.symbols import cell_names
from grader.course import Course
from grader.course.build import lesson_path
from grader.prove.proof import Proof, prove
from grader.sandbox.zygote import QUICK

COURSE = Course(ROOT)
LONG_TRAINING = ("26_capstone",)  # trains for minutes, so `make test` leaves its run to `make test-all`


UNCHANGED = "unchanged since it passed; `make clean` forgets that"


@pytest.fixture
def unless_unchanged(request: pytest.FixtureRequest, lesson: str) -> Iterator[None]:
    """Skip what passed before, and record what passes now."""
    record = Record(COURSE, lesson, request.function.__name__)
    if record.holds and not request.config.getoption("--lesson"):
        pytest.skip(UNCHANGED)
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed == failed:
        record.write()


@pytest.fixture
def jobs(request: pytest.FixtureRequest) -> int | None:
    """One core is ours beside another process that runs tests; all are for one lesson alone, or without xdist."""
    return 1 if "PYTEST_XDIST_WORKER" in os.environ and not request.config.getoption("--lesson") else None


# Of wrong answers, other right answers and mutants: two show whether a verdict depends on the draw. A third takes a
# quarter of the time of the proofs. Whoever changes a lesson runs `grader prove`, which takes 20.
DRAWS = 2


@cache
def full_proof(lesson: str, jobs: int | None) -> tuple[Proof, Future[list[dict[str, str]]]]:
    """The proof, and what a kernel says of the same answers meanwhile: a kernel uses one core."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as beside:
        kernel = beside.submit(surfaces.verdicts_of_kernel, COURSE.lesson(lesson), Path(folder))
        return prove(COURSE, [lesson], jobs=jobs, seeds=DRAWS), kernel


@pytest.mark.parametrize("lesson", COURSE.lesson_ids)
def test_answers_use_names_of_the_setup_and_their_own_only(lesson: str) -> None:
    """In a kernel, an answer that was tried before may have bound another name; the grader runs each answer alone."""
    text = COURSE.lesson(lesson)
    given = {*text.setup_names, *cell_names(text.setup).binds, *dir(builtins)}
    for exercise in text.exercises:
        for answer in (*exercise.right, *exercise.wrong):
            assert cell_names(answer.source).needs <= given, f"{exercise.id}, line {answer.line}"


def test_the_example_class_is_fresh() -> None:
    done = subprocess.run([sys.executable, "examples/make.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.brief
@pytest.mark.usefixtures("unless_unchanged")
@pytest.mark.parametrize("lesson", [one for one in COURSE.text_ids if one not in LONG_TRAINING])
def test_a_lesson_runs_in_brief(lesson: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled in half the time, to code that nobody would time; `make test-all` runs it as learners do."""
    monkeypatch.setenv("XLA_FLAGS", QUICK)
    run(lesson, tmp_path, monkeypatch)


@pytest.mark.thorough
@pytest.mark.usefixtures("unless_unchanged")
@pytest.mark.parametrize("lesson", COURSE.text_ids)
def test_a_lesson_runs_as_learners_run_it(lesson: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(lesson, tmp_path, monkeypatch)


def run(lesson: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top to bottom, without the network, with a deprecated name as an error, without a warning; logs that it asks for
    are fine."""
    monkeypatch.setenv("PYTHONWARNINGS", "error::DeprecationWarning:__main__")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAXERCISE_DIGITS", "embedded")
    (folder / "course.toml").touch()  # what it keeps lies below, in work/
    notebook = nbformat.read(lesson_path(COURSE, lesson), as_version=4)
    # Python's own way to name the module of a warning misses notebook cells, so the filter is set inside as well.
    strict = "import warnings\nwarnings.filterwarnings('error', category=DeprecationWarning, module='__main__')"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(strict))
    execute(notebook, folder, cell_s=240)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output.text for output in outputs if output.get("name") == "stderr" and "Warning" in output.text] == []
    for output in outputs:
        if "image/png" in output.get("data", {}):
            alt = output.metadata.get("image/png", {}).get("alt", "")
            assert len(alt.split()) >= 15, f"a figure without words for who does not see it: {alt!r}"


@pytest.mark.brief
def test_checks_tell_the_reference_from_two_wrong_answers(jobs: int | None) -> None:
    """In every exercise; `make test-all` proves the rest."""
    records = {lesson: Record(COURSE, lesson, "brief") for lesson in COURSE.lesson_ids}
    changed = [lesson for lesson, record in records.items() if not record.holds]
    if not changed:
        pytest.skip(UNCHANGED)
    proof = prove(COURSE, changed, jobs=jobs, brief=True)
    assert proof.problems == ()
    assert proof.rows
    for lesson in changed:
        records[lesson].write()


@pytest.mark.thorough
@pytest.mark.usefixtures("unless_unchanged")
@pytest.mark.parametrize("lesson", COURSE.lesson_ids)
def test_every_exercise_stands_its_test(lesson: str, jobs: int | None) -> None:
    proof, _ = full_proof(lesson, jobs)
    assert proof.problems == ()
    assert proof.rows


@pytest.mark.thorough
@pytest.mark.usefixtures("unless_unchanged")
@pytest.mark.parametrize("lesson", COURSE.lesson_ids)
def test_kernel_and_examiner_agree(lesson: str, jobs: int | None) -> None:
    """On every answer of the course: a plain kernel, and the examiner that has just judged them for the proof."""
    proof, kernel = full_proof(lesson, jobs)
    surfaces.compare(COURSE.lesson(lesson), proof, kernel.result())
