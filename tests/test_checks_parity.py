"""The same answer gets the same verdict in a plain notebook kernel and through the isolated examiner."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from conftest import COURSES, ROOT
from nbclient import NotebookClient

from grader.checks.outcomes import WIDTH
from grader.course import Course, Lesson
from grader.grading.batch import imports
from grader.grading.pool import Pool

TREES = {"vocabulary": COURSES / "vocabulary", "small": COURSES / "small", "course": ROOT}
ENDINGS = {"CheckFailed": "failed", "NotAttempted": "not attempted", "Skipped": "skipped"}


def answers(lesson: Lesson) -> list[tuple[str, str]]:
    """Exercise id and text of every answer that the course has: stub, reference, right and wrong ones."""
    return [
        (exercise.id, source)
        for exercise in lesson.exercises
        for source in (
            exercise.stub,
            exercise.reference,
            *(variant.source for variant in (*exercise.right, *exercise.wrong)),
        )
    ]


def in_a_kernel(lesson: Lesson, folder: Path) -> list[dict[str, str]]:
    """How each check ends when a learner tries one answer after another in one notebook."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(lesson.setup)])
    places: list[tuple[int, str, int]] = []
    exercises = {exercise.id: exercise for exercise in lesson.exercises}
    for number, (exercise, source) in enumerate(answers(lesson)):
        notebook.cells.append(nbformat.v4.new_code_cell(source))
        for check in exercises[exercise].checks:
            places.append((number, check.id, len(notebook.cells)))
            notebook.cells.append(nbformat.v4.new_code_cell(check.source))
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": str(folder)}}
    ).execute()
    assert not any(output.output_type == "error" for output in notebook.cells[0].outputs), notebook.cells[0].outputs
    seen: list[dict[str, str]] = [{} for _ in answers(lesson)]
    for number, check, cell in places:
        errors = [output for output in notebook.cells[cell].outputs if output.output_type == "error"]
        for error in errors:  # what is read before a fold, title and all
            lines = re.sub(r"\x1b\[\d*m", "", "\n".join(error.traceback)).splitlines()
            assert len(lines) < 5, lines
            assert max(map(len, lines)) <= WIDTH, lines
        seen[number][check] = ENDINGS.get(errors[0].ename, "failed") if errors else "passed"
        if not errors:
            assert any("✓" in str(output.get("data")) for output in notebook.cells[cell].outputs), "no tick"
    return seen


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tiny courses always; the course itself, a thousand answers, where all are asked for (make surfaces)."""
    trees = [name for name in TREES if name != "course" or metafunc.config.getoption("--every-answer")]
    cases = [(name, lesson) for name in trees for lesson in Course(TREES[name]).lesson_ids]
    metafunc.parametrize(("name", "lesson_id"), cases)


def test_kernel_and_examiner_agree(name: str, lesson_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    course = Course(TREES[name])
    lesson = course.lesson(lesson_id)
    requests = [{"lesson": lesson_id, "exercise": exercise, "source": source} for exercise, source in answers(lesson)]
    with Pool("grader.prove.proof_server:serve", {"root": str(course.root)}, 1, imports(course, [lesson_id])) as pool:
        isolated = pool.map(requests)
    kernel = in_a_kernel(lesson, tmp_path)
    for (exercise, source), here, there in zip(answers(lesson), kernel, isolated, strict=True):
        # A class's stub raises when its cell runs: the kernel then still holds the answer tried before it.
        if "not attempted" in there.values() and "class " in source:
            continue
        assert here == there, f"{exercise}:\n{source}"
