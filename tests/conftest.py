"""What all tests share: the real command, courses to run it on, and goldens that can be rewritten."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.core.notebook import Submission, read_submission

ROOT = Path(__file__).parents[1]
COURSES = Path(__file__).parent / "courses"
Grader = Callable[..., subprocess.CompletedProcess[str]]


def handed_in(
    cells: Iterable[tuple[str | None, str]], lesson: str, learner: str = "someone", **also: Any
) -> Submission:
    """A submission read from a notebook file with these code cells: the course's id or None, and text."""
    told = [{"cell_type": "code", "metadata": {"nbgrader": {"grade_id": name}}, "source": text} for name, text in cells]
    return read_submission(json.dumps({"cells": told, **also}).encode(), learner, lesson)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="Rewrite the expected results from what is seen.")
    parser.addoption("--lesson", metavar="NN_topic", help="Test this lesson alone, in full, even if it is unchanged.")


def pytest_configure(config: pytest.Config) -> None:
    from grader.course import Course

    lesson, known = config.getoption("--lesson"), Course(ROOT).text_ids
    if lesson is not None and lesson not in known:
        raise pytest.UsageError(f"There is no lesson {lesson}. Lessons: {', '.join(known)}.")


def pytest_report_header(config: pytest.Config) -> str | None:
    """What this run leaves out."""
    if config.getoption("--lesson"):
        return f"only the lesson {config.getoption('--lesson')}: its notebook, full proof and every surface"
    expression = config.getoption("-m")
    if "not thorough" in expression:
        return (
            "left out: full proofs with mutants and all seeds, every answer on every surface, the attack and honest "
            "corpora, a class of a hundred, docs/instructors.md to the letter, lesson 11 without torch, and browsers "
            "(make test-all)"
        )
    return "left out: all that `make test` runs" if expression == "thorough" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --lesson keep that lesson's tests."""
    lesson = config.getoption("--lesson")
    if lesson is None:
        return
    kept = [item for item in items if _lesson(item) == lesson]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _lesson(item: pytest.Item) -> str | None:
    """The lesson of the course that a test in test_course_lessons.py is about."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("lesson") if callspec and item.path.name == "test_course_lessons.py" else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Two processes share the tests file by file, so that what a file's tests share is made once. The lessons of the
    course take minutes together and share nothing, so each of them is a part of its own."""
    from xdist.scheduler import LoadFileScheduling

    class ByFileOrLesson(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            name, _, lesson = test.partition("[")
            if not file.endswith("test_course_lessons.py"):
                return file
            return nodeid if name == "test_a_lesson_runs_top_to_bottom" else f"{file}[{lesson}"  # shares a proof

    return ByFileOrLesson(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def grader() -> Grader:
    """Run the real `grader` command; returns the finished process with its text."""

    def run(*words: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "grader", *map(str, words)]
        wide = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "PYTHONPATH": str(ROOT), **environment}
        return subprocess.run(command, cwd=cwd, env=wide, capture_output=True, text=True, timeout=600, check=False)

    return run


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A copy of tests/courses/<name>, built: its path."""
    from grader.course import Course
    from grader.course.build import build as build_notebooks

    made: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / name
            shutil.copytree(COURSES / name, made[name], ignore=shutil.ignore_patterns("build", "exercises"))
            build_notebooks(Course(made[name]))
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
