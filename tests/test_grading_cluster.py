"""Grading on the workers of a cluster: results are those of one machine, and no worker grades that may not."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fill
import psutil
import pytest
from conftest import PYTHONPATH, Grader
from ports import free_port

from grader.course import Course
from grader.course.build import exercises_path
from grader.grading import cluster_worker
from grader.grading.cluster_worker import COURSE, differences, seal
from grader.sandbox.process import AT_MOST

LESSON = "01_small"
NOTEBOOKS = 24
HOSTILE = "import os\ndef double(x):\n    os._exit(0)\n"


def test_what_differs_is_named() -> None:
    ours = {"around": {"jax": "0.10.2", "the grader": "a"}, "lessons": {"01_a": "x", "02_b": "y"}}
    assert differences(ours, ours) == ""
    theirs = {"around": {"jax": "0.10.1", "the grader": "b"}, "lessons": {"01_a": "x"}}
    said = differences(ours, theirs)
    assert said == "has another version of jax (here 0.10.2, there 0.10.1), the grader, 02_b"


def test_a_seal_holds_for_one_secret_one_request_and_one_content() -> None:
    content = [{"score": 1}]
    seals = {seal("secret", "n", content), seal("other", "n", content), seal("secret", "m", content)}
    assert len(seals | {seal("secret", "n", [{"score": 2}])}) == 4
    assert seal("secret", "n", content) == seal("secret", "n", [{"score": 1}])


def test_a_worker_with_another_course_refuses_before_it_starts_anything(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = cluster_worker.fingerprint(Course(course), [LESSON])
    solutions = course / "solutions" / f"{LESSON}.py"
    solutions.write_text(solutions.read_text().replace("points=2", "points=3", 1))
    monkeypatch.setenv(COURSE, str(course))
    monkeypatch.setattr(cluster_worker, "Pool", None)
    request: dict[str, Any] = {"wanted": wanted, "hidden": [], "levels": ["full"], "nonce": "n"}
    assert cluster_worker.identify(request) == {"refused": f"has another version of {LESSON}"}
    assert cluster_worker.grade_batch(request, [("ann", LESSON, b"{}")]) == {
        "refused": f"has another version of {LESSON}"
    }
    monkeypatch.setenv(COURSE, str(course.parent))
    assert cluster_worker.identify(request)["refused"].startswith("cannot open its course")


class DaskCluster:
    """A scheduler and workers, each a process in a session of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self.start("scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard")

    def start(self, kind: str, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{kind}", *options], cwd=self.folder,
                env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment},
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def worker(self, course: Path, **environment: str) -> subprocess.Popen[bytes]:
        options = ["--nthreads", "1", "--memory-limit", "0", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
        return self.start("worker", self.address, *options, **{COURSE: str(course), **environment})

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[DaskCluster]:
    (tmp_path / "dask").mkdir()
    cluster = DaskCluster(tmp_path / "dask")
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def submitted(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    course, folder = Course(built("small")), tmp_path_factory.mktemp("class")
    lesson = course.lesson(LESSON)
    for number in range(NOTEBOOKS):
        answers = {one.id: one.reference + f"\n# {number}\n" for one in lesson.exercises}
        answers |= {"small-double": HOSTILE} if number % 8 == 3 else {}
        answers |= {"small-mean": "def loss(x):\n    return x.sum()\n"} if number % 5 == 0 else {}
        fill.write(
            fill.fill(exercises_path(course, LESSON), answers), folder / f"l{number:02}" / LESSON / f"{LESSON}.ipynb"
        )
    (folder / "l00" / LESSON / f"{LESSON}.ipynb").write_bytes(b"no notebook")
    (folder / "l01" / LESSON / f"{LESSON}.ipynb").unlink()
    return folder


@pytest.fixture(scope="module")
def expected(
    built: Callable[[str], Path], submitted: Path, tmp_path_factory: pytest.TempPathFactory, grader: Grader
) -> Any:
    root = shutil.copytree(built("small"), tmp_path_factory.mktemp("one") / "course")
    done = grader("--course", root, "grade", submitted, "--json", root / "results.json")
    assert done.returncode == 1, done.stderr
    return results(root)


def results(root: Path) -> list[dict[str, Any]]:
    return [{**one, "duration_s": 0} for one in json.loads((root / "results.json").read_text())["results"]]


def start(course: Path, submitted: Path, on: str) -> subprocess.Popen[str]:
    words = ["grade", str(submitted), "--on", on, "--json", str(course / "results.json")]
    return subprocess.Popen(
        [sys.executable, "-m", "grader", "--course", str(course), *words],
        env={**os.environ, "COLUMNS": "160", "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def graded(course: Path) -> int:
    return len(list((course / "build" / "graded").glob("*/*.json")))


def until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def session(leader: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        try:
            found += [pid] if os.getsid(pid) == leader else []
        except ProcessLookupError:
            continue
    return found


@pytest.mark.thorough
def test_workers_here_give_the_results_of_one_machine_and_leave_nothing(
    course: Path, submitted: Path, expected: Any
) -> None:
    running = start(course, submitted, "local:2")
    _, complaint = running.communicate(timeout=300)
    assert running.returncode == 1, complaint
    assert results(course) == expected
    until(lambda: not session(running.pid), 10)


@pytest.mark.thorough
def test_ctrl_c_ends_the_workers_here(course: Path, submitted: Path, tmp_path: Path) -> None:
    for one in submitted.iterdir():  # so many notebooks that some are left when the first are graded
        for copy in range(5):
            shutil.copytree(one, tmp_path / f"{one.name}-{copy}")
    running = start(course, tmp_path, "local:2")
    until(lambda: graded(course) > 0)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    _, complaint = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGINT
    assert "The same command continues from there." in complaint
    assert "Traceback" not in complaint, complaint
    until(lambda: not session(running.pid), 10)


@pytest.mark.thorough
def test_killed_workers_cost_time_alone(
    course: Path, submitted: Path, expected: Any, dask: DaskCluster, moments: random.Random
) -> None:
    first, _ = dask.worker(course), dask.worker(course)
    running = start(course, submitted, dask.address)
    until(lambda: graded(course) > 0)
    time.sleep(moments.uniform(0, 1))
    first.kill()
    first.wait()
    dask.worker(course)
    _, complaint = running.communicate(timeout=300)
    assert running.returncode == 1, complaint
    assert results(course) == expected
    until(lambda: not session(first.pid), 10)


@pytest.mark.thorough
def test_a_run_that_lost_its_scheduler_resumes(
    course: Path, submitted: Path, expected: Any, dask: DaskCluster, moments: random.Random
) -> None:
    dask.worker(course)
    running = start(course, submitted, dask.address)
    until(lambda: graded(course) > 0)
    time.sleep(moments.uniform(0, 0.3))
    dask.scheduler.kill()
    _, complaint = running.communicate(timeout=120)
    assert running.returncode == 1
    assert "The scheduler was lost" in complaint
    assert "The same command continues from there." in complaint
    assert "Traceback" not in complaint, complaint
    before = graded(course)
    assert before > 0
    running = start(course, submitted, "local:1")
    said, complaint = running.communicate(timeout=300)
    assert f"{before} of them were graded before" in said, complaint
    assert results(course) == expected


@pytest.mark.thorough
def test_no_worker_grades_that_may_not(course: Path, submitted: Path, tmp_path: Path, dask: DaskCluster) -> None:
    """One has another secret, one another lesson, one confines by limits alone."""
    for name in ("secret", "lesson"):
        shutil.copytree(course, tmp_path / name)
    (tmp_path / "secret" / ".secret").write_text("guessed")
    solutions = tmp_path / "lesson" / "solutions" / f"{LESSON}.py"
    solutions.write_text(solutions.read_text().replace("points=2", "points=3", 1))
    dask.worker(tmp_path / "secret")
    dask.worker(tmp_path / "lesson")
    dask.worker(course, **{AT_MOST: "limits"})
    log = dask.folder / "log"
    until(lambda: log.read_text().count("Registered to") == 3)
    running = start(course, submitted, dask.address)
    _, complaint = running.communicate(timeout=120)
    assert running.returncode == 1
    for reason in ("it has another secret", f"it has another version of {LESSON}", "it confines submissions only at"):
        assert f"gets no notebooks, because {reason}" in complaint
    assert "No worker may grade. 3 were refused" in complaint
    assert graded(course) == 0
