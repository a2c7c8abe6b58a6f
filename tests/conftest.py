"""What all tests share: the real command, courses to run it on, and goldens that can be rewritten."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import desk
import pytest
from forked_kernel import KernelServer

if TYPE_CHECKING:
    from grader.sandbox.process import Process, Zygote

from grader.core.notebook import Submission, read_submission

ROOT = Path(__file__).parents[1]
PYTHONPATH = os.pathsep.join([str(ROOT), str(Path(__file__).parent / "without")])
sys.path.insert(0, str(Path(__file__).parent / "without"))
COURSES = Path(__file__).parent / "courses"
SCREENSHOTS = ROOT / "build" / "screenshots"  # what the tests saw in a browser
Grader = Callable[..., subprocess.CompletedProcess[str]]
BROWSER = {
    "Chromium (Debian's package `chromium`)": desk.CHROMIUM,
    "playwright (pip's group `dev`)": importlib.util.find_spec("playwright"),
}
needs_browser = pytest.mark.skipif(
    not all(BROWSER.values()),
    reason=f"no {' and no '.join(name for name, found in BROWSER.items() if not found)} on this machine",
)


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
            "left out: lessons compiled as learners compile them, lesson 26, full proofs with mutants and all seeds, "
            "every answer on every surface, the attack and honest corpora, a class of a hundred, docs/instructors.md "
            "to the letter, lessons 11 and 27 without torch, and browsers (make test-all)"
        )
    return "left out: all that `make test` runs" if expression == "thorough" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Proofs, which take longest, come first, and the runs of single lessons come last, the longer ones of the later
    lessons before the others: so neither of two processes waits long for the other at the end. With --lesson only that
    lesson's tests are kept."""
    items.sort(key=_turn)
    lesson = config.getoption("--lesson")
    if lesson is None:
        return
    kept = [item for item in items if _lesson(item) == lesson and not item.get_closest_marker("brief")]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _turn(item: pytest.Item) -> tuple[int, int]:
    if item.path.name != "test_course_lessons.py":
        return 1, 0
    if not item.name.startswith("test_a_lesson_runs"):
        return 0, 0
    return 2, -int((_lesson(item) or "0").partition("_")[0])


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
            return nodeid if name.startswith("test_a_lesson_runs") else f"{file}[{lesson}"  # shares a proof

    return ByFileOrLesson(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture
def moments() -> random.Random:
    """Draws the moments of a test that stops or kills something. The seed is printed; GRADER_SEED repeats its draws."""
    seed = int(os.environ.get("GRADER_SEED") or random.randrange(1 << 32))
    print(f"GRADER_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def grader() -> Grader:
    """Run the real `grader` command; returns the finished process with its text."""

    def run(*words: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "grader", *map(str, words)]
        wide = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "PYTHONPATH": PYTHONPATH, **environment}
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
def _small_with_work(built: Callable[[str], Path], grader: Grader, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("with_work") / "course"
    shutil.copytree(built("small"), root, ignore=shutil.ignore_patterns("graded", "work"))
    assert grader("--course", root, "lab", "--no-open").returncode == 0
    return root


@pytest.fixture
def course(_small_with_work: Path, tmp_path: Path) -> Path:
    """A copy of tests/courses/small, built, with a learner's notebooks from `grader lab`: its path."""
    return Path(shutil.copytree(_small_with_work, tmp_path / "course"))


@pytest.fixture(scope="module", autouse=True)
def courses_stay_as_they_are(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that grades, builds or proves in tests/courses would leave caches there: it takes a copy."""
    before = _files_of_courses()
    yield
    if not request.config.getoption("--update-goldens"):
        changed = [str(path) for path, _ in sorted(before ^ _files_of_courses())]
        assert not changed, f"tests (perhaps of another file that runs beside this one) wrote {', '.join(changed)}"


@pytest.fixture(scope="module", autouse=True)
def configuration_of_jax_stays_as_it_is() -> Iterator[None]:
    """The tests of the next file share this process, so what a file sets it also sets back."""
    before = _configuration_of_jax()
    yield
    after = _configuration_of_jax()
    changed = {name: after[name] for name in before.keys() & after.keys() if after[name] != before[name]}
    assert not changed, f"tests of this file left jax.config changed: {changed}"


def _configuration_of_jax() -> dict[str, Any]:
    return dict(sys.modules["jax"].config.values) if "jax" in sys.modules else {}


def _files_of_courses() -> set[tuple[Path, int]]:
    return {(path, path.stat().st_mtime_ns) for path in COURSES.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def zygote(request: pytest.FixtureRequest) -> Iterator[Zygote]:
    """Started with what the test's module says in `ZYGOTE`. As a parameter it takes a level of confinement, and skips
    the tests where the machine refuses that level."""
    from grader.sandbox.process import AT_MOST, Zygote

    level = getattr(request, "param", None)
    with pytest.MonkeyPatch.context() as patch:
        if level:
            patch.setenv(AT_MOST, level)
        one = Zygote.start(*getattr(request.module, "ZYGOTE", ([],)))
    try:
        if level and one.confined.level != level:
            pytest.skip(f"this machine refuses it: {one.confined.refused[level]}")
        yield one
    finally:
        one.stop()


@pytest.fixture
def worker(zygote: Zygote) -> Iterator[Process]:
    """A confined worker in which the modules that probes need are imported."""
    from grader.core.layout import WORKER

    process = zygote.fork(WORKER)
    run(process, "import ctypes, os, resource, signal, socket, subprocess, sys, threading, time")
    yield process
    process.kill()


def run(process: Process, source: str, seconds: float = 20.0) -> dict[str, Any]:
    """Run a cell in a worker; returns its reply."""
    from grader.program.codec import decode, encode

    return decode(process.exchange(encode({"do": "run", "source": source}), seconds=seconds))


def ask(process: Process, probe: str, seconds: float = 20.0) -> Any:
    """The value of an expression in a worker, or the kind of the error that it raises there."""
    from grader.program.codec import decode, encode

    asked = encode({"do": "ask", "probe": f"lambda: {probe}", "name": ""})
    reply = decode(process.exchange(asked, encode({"args": (), "mesh": None}), seconds=seconds))
    return reply["value"] if "value" in reply else reply.get("kind", reply)


@pytest.fixture(scope="session")
def _kernel_server() -> Iterator[KernelServer]:
    one = KernelServer(ROOT)
    yield one
    one.stop()


@pytest.fixture
def forked_kernels(_kernel_server: KernelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel of the test is forked from one that has imported JAX, which saves a second of computing."""
    monkeypatch.setattr("jupyter_client.provisioning.local_provisioner.launch_kernel", _kernel_server.launch_kernel)


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
