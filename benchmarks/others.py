"""Other graders, each put to the same submissions in its own way: stock nbgrader, and otter in its own environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from grader.course import Course, Exercise
from grader.course.build import source_path

ROOT = Path(__file__).resolve().parents[1]
OTTER = "otter-grader==7.0.0"
NBGRADER_CONFIG = """\
c = get_config()
c.CourseDirectory.root = {root!r}
c.ExecutePreprocessor.timeout = 10
c.Autograde.ignore_checksums = True
"""
OTTER_TESTS = """\
from otter.test_files import test_case

OK_FORMAT = False
name = {name!r}
points = None

"""
OTTER_TEST = """\
@test_case(points={points!r}, hidden={hidden!r})
def test_{number}(env):
    exec({source!r}, env)

"""


def run(
    command: list[str], cwd: Path, variables: Mapping[str, str] | None = None, allowed: tuple[int, ...] = (0,)
) -> float:
    """Seconds on the clock. Raises RuntimeError with what the command said when it fails."""
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=cwd, env={**environment(), **(variables or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode not in allowed:
        said = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    return time.perf_counter() - began


def environment() -> dict[str, str]:
    """nbgrader calls alembic by its name, so the environment's commands have to be found."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
    }


def nbgrader(folder: Path, lesson: str, scratch: Path) -> tuple[float, int]:
    """Seconds for `nbgrader autograde` of the class in a course of its own, and how many notebooks it scored."""
    root = scratch / "stock"
    shutil.copytree(source_path(Course(ROOT), lesson).parent, root / "source" / lesson)
    for learner in sorted(folder.iterdir()):
        shutil.copytree(learner / lesson, root / "submitted" / learner.name / lesson)
    (root / "nbgrader_config.py").write_text(NBGRADER_CONFIG.format(root=str(root)))
    command = [sys.executable, "-m", "nbgrader"]
    run([*command, "generate_assignment", lesson, "--force"], root)
    seconds = run([*command, "autograde", lesson], root, allowed=(0, 1))
    return seconds, len(list((root / "autograded").glob("*/*/*.ipynb")))


def otter(folder: Path, lesson: str, scratch: Path) -> tuple[float, int]:
    """Seconds for `otter run` of each notebook of the class, one after the other, and how many it gave a score."""
    command = otter_command(ROOT / "build" / "bench" / "otter")
    archive = scratch / "autograder.zip"
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("otter_config.json", json.dumps({"lang": "python"}))
        for exercise in Course(ROOT).lesson(lesson).exercises:
            files.writestr(f"tests/{exercise.id}.py", otter_tests(exercise))
    seconds, scored = 0.0, 0
    for learner in sorted(folder.iterdir()):
        out = scratch / "otter" / learner.name
        out.mkdir(parents=True)
        notebook = learner / lesson / f"{lesson}.ipynb"
        seconds += run([*command, "run", str(notebook), "-a", str(archive), "-o", str(out), "--no-logo"], out)
        scored += len(json.loads((out / "results.json").read_text())["tests"]) > 0
    return seconds, scored


def otter_tests(exercise: Exercise) -> str:
    """An exercise's checks as one of otter's exception-based test files."""
    tests = [
        OTTER_TEST.format(points=check.points, hidden=check.hidden, number=number, source=check.source)
        for number, check in enumerate(exercise.checks)
    ]
    return OTTER_TESTS.format(name=exercise.id) + "\n".join(tests)


def otter_command(place: Path) -> list[str]:
    """`otter` in a virtual environment of its own with the same JAX, made where it is missing."""
    python = place / "bin" / "python"
    if not (place / "bin" / "otter").exists():
        print(f"Making an environment for {OTTER} under {place} ...", flush=True)
        run([sys.executable, "-m", "venv", str(place)], ROOT)
        same = [f"{name}=={version(name)}" for name in ("jax", "jaxlib", "flax", "optax", "flatbuffers", "numpy")]
        run([str(python), "-m", "pip", "install", "--quiet", OTTER, "ipykernel", *same], ROOT)
    return [str(python), "-m", "otter"]
