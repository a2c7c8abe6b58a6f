"""What all tests share: the real command, courses to run it on, and goldens that can be rewritten."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
COURSES = Path(__file__).parent / "courses"
Grader = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="Rewrite the expected results from what is seen.")
    parser.addoption("--every-answer", action="store_true", help="Put every answer of the course through a kernel too.")


def pytest_report_header(config: pytest.Config) -> str | None:
    """What a plain run leaves out is said at its head."""
    if config.getoption("--every-answer"):
        return None
    return "left out: the course's own answers in a plain kernel and through the examiner (make surfaces)"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Two processes share the tests file by file, so that what a file's tests share is made once; two files hold
    tests of minutes that share nothing, and would keep one process busy long after the other has ended."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if file.endswith(("test_checks_parity.py", "test_course_lessons.py")) else file

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def grader() -> Grader:
    """Run the real `grader` command; returns the finished process with its text."""

    def run(*words: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "grader", *map(str, words)]
        wide = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "PYTHONPATH": str(ROOT), **environment}
        return subprocess.run(command, cwd=cwd, env=wide, capture_output=True, text=True, timeout=600, check=False)

    return run


@pytest.fixture(scope="session")
def built(grader: Grader, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A copy of tests/courses/<name>, built: its path."""
    made: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / name
            shutil.copytree(COURSES / name, made[name], ignore=shutil.ignore_patterns("build", "exercises"))
            done = grader("--course", made[name], "build")
            assert done.returncode == 0, done.stderr
        return made[name]

    return build


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """A folder that any user of this machine may read: pytest's own are for one user alone, and with limits alone a
    worker is kept from files by nothing but being somebody else, where it can be."""
    folder = Path(tempfile.mkdtemp(prefix="open-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, Any], None]:
    """Compare data with tests/<name>, or write it there with --update-goldens."""

    def compare(name: str, seen: Any) -> None:
        path = Path(__file__).parent / name
        if request.config.getoption("--update-goldens"):
            path.write_text(json.dumps(seen, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        assert json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(seen))

    return compare
