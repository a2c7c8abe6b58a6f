"""Times the gradebook for a class of 300 and ten lessons: `grader grade --gradebook` and the pages of Formgrader.

`benchmarks.semester` creates the course, its notebooks and their cached results. During the measurement, only the one
notebook that is submitted again is graded. Each page of Formgrader is loaded with everything that it requests, three
times, and the table shows the median. Its server uses the database that `grader grade --gradebook` has written, first
with and then without the indexes that this command adds.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from benchmarks import results, semester
from benchmarks.others import environment
from grader.course import Course
from grader.lms.nbgrader_database import LOOKED_UP

TITLE = "The gradebook for a class of 300"


def main() -> None:
    """Measure, print the table, and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--learners", type=int, default=300)
    parser.add_argument("--lessons", type=int, default=10)
    parser.add_argument("--course", type=Path, help="A course that an earlier run has left; nothing is written down.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = asked.course or Path(temporary) / "course"
        course = Course(root) if asked.course else semester.make(root, asked.lessons, asked.learners)
        lines = [*storing(course), "", *pages(course)]
    print("\n".join(lines))
    if asked.course is None:
        results.report(TITLE, __doc__, lines)


def storing(course: Course) -> list[str]:
    """`grader grade submitted --gradebook`: all new, one notebook new, none new."""
    lines = ["| `grader grade submitted --gradebook` | elapsed, s | processor, s |", "|---|---:|---:|"]
    count = len(list((course.root / "submitted").glob("*/*/*.ipynb")))
    lines.append(_row(f"all {count:,} notebooks are graded, and none is in the database", *grade(course)))
    semester.change(course, course.lesson_ids[0], 0)
    lines.append(_row("one notebook was submitted again", *grade(course)))
    lines.append(_row("nothing has changed", *grade(course)))
    return lines


def grade(course: Course) -> tuple[float, float]:
    """Seconds on the clock, and of computing."""
    command = [sys.executable, "-m", "grader", "--course", str(course.root), "grade", str(course.root / "submitted")]
    began, before = time.perf_counter(), os.times()
    done = subprocess.run([*command, "--gradebook"], env=environment(), capture_output=True, text=True, check=False)
    after = os.times()
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, used


def _row(what: str, *seconds: float) -> str:
    return f"| {what} | {' | '.join(f'{one:.2f}' if one < 10 else f'{one:.0f}' for one in seconds)} |"


def pages(course: Course) -> list[str]:
    """Formgrader's pages with what they fetch, with our indexes and without."""
    asked = _pages(course)
    with server(course) as (address, process):
        ours = {name: median(address, process, paths) for name, paths in asked.items()}
    database = course.root / "gradebook.db"
    with closing(sqlite3.connect(database)) as opened:
        for table, column in LOOKED_UP:
            opened.execute(f"drop index ix_{table}_{column}")
    with server(course) as (address, process):
        stock = {name: median(address, process, paths) for name, paths in asked.items()}
    lines = [
        "| page of Formgrader | elapsed, s | processor, s | processor without the indexes, s |",
        "|---|---:|---:|---:|",
    ]
    return [*lines, *(_row(name, *ours[name], stock[name][1]) for name in asked)]


def _pages(course: Course) -> dict[str, list[str]]:
    """By name: a page, and what its script asks the server for."""
    lesson, learner = course.lesson_ids[0], "learner-000"
    query = """select submitted_notebook.id from submitted_notebook
        join submitted_assignment on submitted_assignment.id = submitted_notebook.assignment_id
        join assignment on assignment.id = submitted_assignment.assignment_id where student_id = ? and name = ?"""
    with closing(sqlite3.connect(course.root / "gradebook.db")) as opened:
        [submission] = opened.execute(query, (learner, lesson)).fetchone()
    return {
        "Manage Assignments": ["manage_assignments", "api/assignments"],
        "Manage Submissions of a lesson": [f"manage_submissions/{lesson}", f"api/submissions/{lesson}"],
        "Gradebook": ["gradebook", "api/assignments"],
        "Gradebook, a lesson": [f"gradebook/{lesson}", f"api/notebooks/{lesson}"],
        "Gradebook, a lesson's notebooks": [
            f"gradebook/{lesson}/{lesson}",
            f"api/submitted_notebooks/{lesson}/{lesson}",
        ],
        "Manual grading of a notebook": [
            f"submissions/{submission}/",
            f"api/grades?submission_id={submission}",
            f"api/comments?submission_id={submission}",
        ],
        "Manage Students": ["manage_students", "api/students"],
        "Manage Students, one": [f"manage_students/{learner}", f"api/student_submissions/{learner}"],
    }


def median(address: str, process: psutil.Process, paths: list[str]) -> tuple[float, float]:
    """Seconds for a page with all that it fetches: on the clock, and of the server's computing."""
    seconds, computing = [], []
    for _ in range(3):
        began, before = time.perf_counter(), process.cpu_times()
        for path in paths:
            with urllib.request.urlopen(f"{address}/formgrader/{path}", timeout=600) as reply:
                text = reply.read()
                if path.startswith("api/"):
                    assert json.loads(text), path
        after = process.cpu_times()
        seconds.append(time.perf_counter() - began)
        computing.append(after.user + after.system - before.user - before.system)
    return statistics.median(seconds), statistics.median(computing)


@contextmanager
def server(course: Course) -> Iterator[tuple[str, psutil.Process]]:
    """A Jupyter server with Formgrader for this course, on this machine only: its address and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configuration = course.root / "build" / "jupyter"
    configuration.mkdir(exist_ok=True)
    extensions = {"jpserver_extensions": {"nbgrader.server_extensions.formgrader": True}}
    (configuration / "jupyter_server_config.json").write_text(json.dumps({"ServerApp": extensions}))
    settings = {"ip": "127.0.0.1", "port": port, "port_retries": 0, "token": "", "password": "", "allow_root": True,
                "open_browser": False, "root_dir": course.root}  # fmt: skip
    options = [f"--ServerApp.{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "jupyter_server", "--IdentityProvider.token=", *options]
    variables = {**environment(), "JUPYTER_CONFIG_DIR": str(configuration)}
    log = (course.root / "build" / "server.log").open("w")
    running = subprocess.Popen(command, cwd=course.root, env=variables, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/formgrader/api/status", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
                if running.poll() is not None:
                    break
        yield address, psutil.Process(running.pid)
    finally:
        running.terminate()
        running.wait(30)
        log.close()


if __name__ == "__main__":
    main()
