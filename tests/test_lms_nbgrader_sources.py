"""nbgrader finds its source notebooks without being told to build them, as new as the course's text."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import COURSES, PYTHONPATH, ROOT

LESSON = "01_small"


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A course as it is cloned: nothing in it is built but what is committed."""
    root = shutil.copytree(COURSES / "small", tmp_path / "small", ignore=shutil.ignore_patterns("build"))
    shutil.copyfile(ROOT / "nbgrader_config.py", root / "nbgrader_config.py")
    return root


def generate(course: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHONPATH": PYTHONPATH, "JUPYTER_CONFIG_DIR": str(course / "none")}
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", LESSON]
    return subprocess.run(command, cwd=course, env=variables, capture_output=True, text=True, timeout=300, check=False)


def test_a_fresh_clone_is_released_and_what_changed_is_built_anew(course: Path) -> None:
    source = course / "build" / "source" / LESSON / f"{LESSON}.ipynb"
    done = generate(course)
    assert done.returncode == 0, done.stderr
    first = source.read_bytes()
    text = course / "solutions" / f"{LESSON}.py"
    text.write_text(text.read_text().replace("**Goal.**", "**Goal.** Now:", 1))
    later = source.stat().st_mtime + 5
    os.utime(text, (later, later))
    done = generate(course)
    assert done.returncode == 0, done.stderr
    assert source.read_bytes() != first
    assert b"Now:" in (course / "exercises" / LESSON / f"{LESSON}.ipynb").read_bytes()


def test_a_mistake_in_the_text_is_told_and_ends_nothing(course: Path) -> None:
    assert generate(course).returncode == 0
    text = course / "solutions" / f"{LESSON}.py"
    text.write_text(text.read_text().replace("**Goal.**", "", 1))
    later = text.stat().st_mtime + 5
    os.utime(text, (later, later))
    done = generate(course)
    assert f"The source notebooks could not be built: solutions/{LESSON}.py:" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
