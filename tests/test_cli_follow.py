"""`grader grade --follow`: what arrives in a queue is graded once, and a run that was stopped resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from conftest import PYTHONPATH
from ports import free_port
from rich.console import Console

from grader.cli import follow
from grader.cli.follow import Follower, screen
from grader.core.result import Result, grader_fault
from grader.course import Course
from grader.grading.batch import Entry
from grader.grading.queue_metrics import QueueMetrics

LESSON = "01_small"


def arrive(queue: Path, learner: str, content: bytes = b"", age: float = 60.0) -> None:
    path = queue / learner / LESSON / f"{LESSON}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (time.time() - age,) * 2)


class FakeEngine:
    """Gives each notebook full points, but for learners in `faults`, where the grader fails."""

    def __init__(self) -> None:
        self.rounds, self.faults = list[list[str]](), set[str]()

    def __call__(
        self, entries: list[Entry], add: Callable[[Entry, Result], None], before: Mapping[Entry, Result]
    ) -> None:
        self.rounds.append([entry.learner for entry in entries])
        for entry in entries:
            failed = entry.learner in self.faults
            add(entry, grader_fault(entry.learner, LESSON, "no") if failed else Result(entry.learner, LESSON))


@pytest.fixture
def follower(course: Path, tmp_path: Path) -> Follower:
    (tmp_path / "queue").mkdir()
    return Follower(Course(course), tmp_path / "queue", None, str(tmp_path / "out"), {})


def test_a_notebook_is_graded_when_it_arrives_and_when_it_changes(
    follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, queue = FakeEngine(), tmp_path / "queue"
    assert follower.round(engine) == 0
    arrive(queue, "bob", age=50)
    arrive(queue, "ann", age=90)
    arrive(queue, "writing", age=0)
    assert [entry.learner for entry in follower.waiting()] == ["ann", "bob"], "the oldest first"
    assert follower.round(engine) == 2
    assert follower.round(engine) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["ann", "bob"]
    assert json.loads((tmp_path / "out" / "ann" / f"{LESSON}.json").read_text())["results"][0]["learner"] == "ann"
    arrive(queue, "ann", b"changed")
    engine.faults = {"cy"}
    arrive(queue, "cy")
    follower.round(engine)
    assert engine.rounds[1:] == [["ann", "cy"]] or engine.rounds[1:] == [["cy", "ann"]]
    assert not (tmp_path / "out" / "cy").exists(), "a fault of the grader is no result"
    assert follower.round(engine) == 0
    later = time.time() + 100
    monkeypatch.setattr(follow.time, "time", lambda: later)
    engine.faults = set()
    assert follower.round(engine) == 2, "cy again, and what was still being written"


def test_what_cannot_be_written_is_written_later(follower: Follower, tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    arrive(tmp_path / "queue", "ann")
    follower.round(FakeEngine())
    assert "ann/01_small.json cannot be written" in follower.metrics.failures[0]
    (tmp_path / "out").unlink()
    follower.round(FakeEngine())
    assert (tmp_path / "out" / "ann" / f"{LESSON}.json").is_file()


def test_the_screen_shows_counts_throughput_and_failures() -> None:
    now = [0.0]
    metrics = QueueMetrics(lambda: now[0])
    now[0] = 60.0
    metrics.waiting, metrics.oldest = 3, 10.0
    for name in ("a", "b"):
        metrics.add(Result(name, LESSON))
    metrics.add(grader_fault("c", LESSON, "out of memory"))
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(screen(metrics))
    console.file.close()
    shown = console.export_text()
    assert "c/01_small: The grader itself failed: out of memory." in shown
    assert [word for word in shown.replace("│", " ").split() if word[:1].isdigit()][:6] == [
        "2",
        "0",
        "1",
        "0",
        "50",
        "3.0",
    ]


def test_the_command_follows_a_queue_until_it_is_stopped(course: Path, tmp_path: Path) -> None:
    arrive(tmp_path, "ann")
    port = free_port()
    command = [sys.executable, "-m", "grader", "--course", str(course), "grade", str(tmp_path), "--follow"]
    running = subprocess.Popen(
        [*command, "--metrics", str(port), "--json", str(tmp_path / "out"), "--jobs", "1"],
        env={**os.environ, "PYTHONPATH": PYTHONPATH}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 100
        while not (tmp_path / "out" / "ann" / f"{LESSON}.json").exists() and time.monotonic() < end:
            time.sleep(0.1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            metrics = reply.read().decode()
        assert 'jaxercise_notebooks_total{lesson="01_small",outcome="unreadable"} 1.0' in metrics
        running.send_signal(signal.SIGINT)
        _, complaint = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 128 + signal.SIGINT
    assert "Stopped after 1 notebook. The same command continues from there." in complaint
    assert "Traceback" not in complaint
