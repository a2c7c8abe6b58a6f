"""Grades a large class, one in ten of it hostile, in one run of `grader grade`; watches memory and time: `make soak`.

The lesson, by default one of three small exercises, is answered in every way that its course knows, each answer with a
comment of its own. Ends with 1 when a notebook is lost, an honest one is not judged right, a hostile one costs more
than its exercise, or something is left behind. Memory is the sum of PSS over the command and all that it started: pages
that processes share count once. The time of an honest notebook beside a hostile one is compared with that of one beside
honest ones in the same run; with `--at-most 2` more than twice that time is a failure too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.hostile import EVERY, Expected, make
from grader.course import Course
from grader.grading.cache import file_name

ROOT = Path(__file__).resolve().parents[1]
SMALL = ROOT / "tests" / "courses" / "small"
PARTS = {"course.toml", "notebooks", "solutions", "images"}  # what there is of a course before anything is built
SAMPLE_S = 1.0


@dataclass
class Watch:
    """Memory over time: seconds since the start, and MB of the command and everything it started."""

    samples: list[tuple[float, float]] = field(default_factory=list)

    def run(self, command: list[str], environment: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
        """Run the command to its end and watch it."""
        began = time.monotonic()
        with tempfile.TemporaryFile("w+") as complaint:
            running = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=complaint, text=True, start_new_session=True
            )
            while running.poll() is None:
                total = sum(pss for _, pss in family(running.pid))
                self.samples.append((time.monotonic() - began, total))
                time.sleep(SAMPLE_S)
            complaint.seek(0)
            return running, complaint.read()

    def between(self, begin: float, end: float) -> list[float]:
        """What was seen between two moments."""
        return [mb for at, mb in self.samples if begin <= at <= end] or [0.0]


def family(session: int) -> Iterator[tuple[int, float]]:
    """Every process of a session and its proportional share of memory in MB."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(pid) == session:
                yield pid, psutil.Process(pid).memory_full_info().pss / 1e6


def wrong(results: list[dict[str, object]], worth: dict[str, Expected]) -> list[str]:
    """What is not as it should be, a sentence each."""
    said = [f"{name} has no result" for name in worth.keys() - {str(result["learner"]) for result in results}]
    for result in results:
        earned: dict[str, list[float]] = {}
        for check in result["checks"]:  # type: ignore[attr-defined]
            lost = check["max_points"] - check["points"]
            earned.setdefault(check["exercise"], []).append(lost)
            if check["status"] == "error":
                said.append(f"{result['learner']}: {check['id']} is at fault: {check['message']}")
        expected = worth[str(result["learner"])]
        if result["problem"]:
            said.append(f"{result['learner']} is not graded: {result['problem']}")
            continue
        said += [f"{result['learner']}: {e} should earn all" for e in sorted(expected.full) if sum(earned[e]) > 0]
        said += [f"{result['learner']}: {e} should earn less" for e in sorted(expected.less) if sum(earned[e]) == 0]
    return said


def main() -> int:
    """Make the class, grade it, and print what was seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--course", type=Path, default=SMALL)
    parser.add_argument("--lesson", default="01_small")
    parser.add_argument("--at-most", type=float, help="fail if a hostile neighbour slows a notebook by a larger factor")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        problems = soak(asked.course.resolve(), asked.lesson, asked.count, Path(scratch), asked.at_most)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def soak(root: Path, lesson: str, count: int, place: Path, at_most: float | None) -> list[str]:
    """Grade a class in a copy of the course, and report; returns what is not as it should be."""

    def left_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name not in PARTS] if Path(folder) == root else []

    shutil.copytree(root, place / "course", ignore=left_out)
    (place / "temporary").mkdir()
    grader = [sys.executable, "-m", "grader", "--course", str(place / "course")]
    subprocess.run([*grader, "build", lesson], check=True, stdout=subprocess.DEVNULL)
    course = Course(place / "course")
    worth = make(course, course.lesson(lesson), place / "class", count)
    watch, began = Watch(), time.time()
    command = [*grader, "grade", str(place / "class"), "--json", str(place / "results.json")]
    running, complaint = watch.run(command, {**os.environ, "TMPDIR": str(place / "temporary")})
    seconds = time.time() - began
    problems, results = [complaint] if running.returncode else [], []
    if (place / "results.json").exists():
        results = json.loads((place / "results.json").read_text())["results"]
        problems += wrong(results, worth)
    time.sleep(1)
    problems += [f"process {pid} is left" for pid, _ in family(running.pid)]
    problems += [f"{path} is left" for path in (place / "temporary").iterdir()]
    moments = {path.stem: path.stat().st_mtime - began for path in (course.root / "build" / "graded").glob("*/*")}
    report(count, seconds, sorted(moments.values()), watch)
    ended = {result["learner"]: moments.get(file_name(result["learner"])) for result in results}
    spans = {one["learner"]: (end - one["duration_s"], end) for one in results if (end := ended[one["learner"]])}
    slowed = beside_hostile(spans, {name for name, one in worth.items() if one.hostile} & spans.keys())
    if at_most is not None and slowed > at_most:
        problems.append(f"an honest notebook takes {slowed:.2f} times as long beside a hostile one")
    return problems


def beside_hostile(spans: dict[str, tuple[float, float]], hostile: set[str]) -> float:
    """Print how long honest notebooks take that are graded beside hostile ones for more than half of their time, and
    how long those take that are not beside any. Returns the quotient of the medians; 0 where there are none of a kind.
    """
    beside, others = list[float](), list[float]()
    for begin, end in (span for name, span in spans.items() if name not in hostile):
        shared = sum(max(0.0, min(end, spans[name][1]) - max(begin, spans[name][0])) for name in hostile)
        if shared == 0 or 2 * shared > end - begin:
            (beside if shared else others).append(end - begin)
    if not beside or not others:
        print("No honest notebook was graded beside a hostile one, or all were.")
        return 0.0
    slow, fast = statistics.median(beside), statistics.median(others)
    print(f"an honest notebook beside a hostile one takes {slow:.2f} s (median of {len(beside)}), "
          f"another {fast:.2f} s (of {len(others)}): {slow / fast:.2f} times as long")  # fmt: skip
    return slow / fast


def report(count: int, seconds: float, moments: list[float], watch: Watch) -> None:
    """Print how long it took and how much memory, by quarters of the class."""
    print(f"{count} notebooks, {len(range(0, count, EVERY))} of them hostile, in {seconds:.1f} s: "
          f"{60 * count / seconds:.0f} a minute on {os.cpu_count()} cores")  # fmt: skip
    print("  quarter   seconds   memory: median     most")
    begin = 0.0
    for quarter in range(4):
        end = moments[len(moments) * (quarter + 1) // 4 - 1]
        seen = watch.between(begin, end)
        print(f"  {quarter + 1}         {end - begin:7.1f}      {statistics.median(seen):7.0f} MB {max(seen):7.0f} MB")
        begin = end


if __name__ == "__main__":
    sys.exit(main())
