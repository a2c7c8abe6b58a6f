"""The package without a checkout: a wheel that contains the course, installed into an environment without anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import fill
import pytest
from conftest import ROOT
from wheels import built_wheel

from grader.course import Course

LESSON = "05_vmap"
MAX_WHEEL_MB = 8
INSTRUCTORS = {"nbgrader", "sqlalchemy", "alembic", "bleach"}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def learner(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """An environment with the wheel and the newest version of each dependency, and a command to run in its folder."""
    folder = tmp_path_factory.mktemp("learner")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True, timeout=120)
    python = folder / "env" / "bin" / "python"
    subprocess.run([str(python), "-I", "-m", "pip", "install", "--quiet", str(wheel)], check=True, timeout=900)
    (folder / "home").mkdir()
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}

    def run(*words: str, cwd: Path = folder / "home") -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, with nothing of this one."""
        command = [str(python.with_name(words[0])), *words[1:]]
        environment = {**kept, "PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(folder / "home"), "COLUMNS": "120"}
        return subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False
        )

    return folder / "home", run


@pytest.mark.thorough
def test_the_wheel_contains_the_course(wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_WHEEL_MB << 20
    names = zipfile.ZipFile(wheel).namelist()
    for lesson in Course(ROOT).lesson_ids:
        for path in (f"notebooks/{lesson}.ipynb", f"exercises/{lesson}/{lesson}.ipynb", f"solutions/{lesson}.py"):
            assert f"grader/installed_course/{path}" in names


@pytest.mark.thorough
def test_from_an_empty_environment_to_a_solved_exercise(learner: tuple[Path, Run]) -> None:
    home, run = learner
    begun = run("jaxercise", "lab", "--no-open", "--folder", "learning")
    assert begun.returncode == 0, begun.stderr
    folder = home / "learning"
    notebook = folder / "work" / LESSON / f"{LESSON}.ipynb"
    first, *_ = Course(ROOT).lesson(LESSON).exercises
    fill.write(fill.fill(notebook, {first.id: first.reference}), notebook)
    checked = run("jaxercise", "check", LESSON, "--exercise", first.id, "--json", "result.json", cwd=folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    [result] = json.loads((folder / "result.json").read_text())["results"]
    assert {check["status"] for check in result["checks"]} == {"passed"}
    assert any(check["hidden"] for check in result["checks"])
    assert f"{LESSON}" in run("jaxercise", "progress", cwd=folder).stdout
    assert "up to date" in run("jaxercise", "carry", cwd=folder).stdout
    assert run("jaxercise", "solution", LESSON, cwd=folder).returncode == 0
    assert run("jaxercise", "reset", LESSON, cwd=folder).returncode == 0
    assert run("jaxercise", "doctor", cwd=folder).returncode == 0
    assert run("jupyter-lab", "--version", cwd=folder).returncode == 0


@pytest.mark.thorough
def test_what_only_instructors_need_is_not_installed(learner: tuple[Path, Run]) -> None:
    home, run = learner
    listed = run("python", "-m", "pip", "list", "--format", "json")
    assert not INSTRUCTORS & {one["name"].lower() for one in json.loads(listed.stdout)} - {"bleach"}  # nbconvert's too
    run("jaxercise", "lab", "--no-open")
    refused = run("jaxercise", "instructor", cwd=home / "jaxercise")
    assert refused.returncode == 2
    assert "pip install 'jaxercise[instructor]'" in refused.stderr
    refused = run("jaxercise", "build", cwd=home / "jaxercise")
    assert refused.returncode == 2
    assert "uses the installed course" in refused.stderr
