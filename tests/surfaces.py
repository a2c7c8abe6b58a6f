"""Every answer of a lesson as a learner's kernel judges it, to be compared with the examiner's verdicts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
from conftest import ROOT

from grader.checks.execute import execute
from grader.checks.outcomes import WIDTH
from grader.course import Lesson
from grader.prove.proof import Proof
from grader.sandbox.zygote import QUICK

ENDINGS = {"CheckFailed": "failed", "NotAttempted": "not attempted", "Skipped": "skipped"}


def answers(lesson: Lesson) -> list[tuple[str, str]]:
    """Exercise id and text of every answer that the course has, in the order of `ExerciseProof.verdicts`."""
    return [
        (exercise.id, source)
        for exercise in lesson.exercises
        for source in (
            exercise.stub,
            exercise.reference,
            *(variant.source for variant in (*exercise.right, *exercise.wrong)),
        )
    ]


def verdicts_of_kernel(lesson: Lesson, folder: Path) -> list[dict[str, str]]:
    """Status by check id of each answer when a learner tries one after another in one notebook.

    The kernel compiles with the flags of a worker, which takes up to 45% less processor time.
    """
    for name, content in lesson.data.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(lesson.setup)])
    places: list[tuple[int, str, int]] = []
    exercises = {exercise.id: exercise for exercise in lesson.exercises}
    for number, (exercise, source) in enumerate(answers(lesson)):
        notebook.cells.append(nbformat.v4.new_code_cell(source))
        for check in exercises[exercise].checks:
            places.append((number, check.id, len(notebook.cells)))
            notebook.cells.append(nbformat.v4.new_code_cell(check.source))
    # Answers to one exercise compile the same large programs, as those of lesson 26; JAX reads these from its cache.
    compiled = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }
    env = os.environ | compiled | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": QUICK}
    execute(notebook, folder, cell_s=300, allow_errors=True, env=env)
    assert not any(output.output_type == "error" for output in notebook.cells[0].outputs), notebook.cells[0].outputs
    verdicts: list[dict[str, str]] = [{} for _ in answers(lesson)]
    for number, check, cell in places:
        errors = [output for output in notebook.cells[cell].outputs if output.output_type == "error"]
        for error in errors:  # what is read before a fold, title and all
            lines = re.sub(r"\x1b\[\d*m", "", "\n".join(error.traceback)).splitlines()
            assert len(lines) < 5, lines
            assert max(map(len, lines)) <= WIDTH, lines
        verdicts[number][check] = ENDINGS.get(errors[0].ename, "failed") if errors else "passed"
        if not errors:
            assert any("✓" in str(output.get("data")) for output in notebook.cells[cell].outputs), "no tick"
    return verdicts


def compare(lesson: Lesson, proof: Proof, kernel: list[dict[str, str]]) -> None:
    """Assert that a kernel gave every answer of a lesson the verdicts that the examiner gave in its full proof."""
    examined = [verdicts for row in proof.rows for verdicts in row.verdicts]
    for (exercise, source), here, there in zip(answers(lesson), kernel, examined, strict=True):
        # A class's stub raises when its cell runs: the kernel then still holds the answer tried before it.
        if "not attempted" in there.values() and "class " in source:
            continue
        assert here == there, f"{exercise}:\n{source}"
