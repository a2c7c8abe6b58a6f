"""Grades a large class on a cluster of this machine while workers are killed: `python -m benchmarks.cluster`.

The class is that of `benchmarks.hostile` with one notebook in fifty hostile. A scheduler and its workers run as
separate processes with Dask's own commands. At random moments, one worker is killed and another started. Ends with
1 if a notebook is lost or has two results, one is not judged right, a process is left, or memory grows. It compares
two workers with one on the same notebooks, without kills. The scheduler's overhead is measured with empty tasks, and
the calculation for more workers divides the time of a batch by it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks import hostile, soak
from benchmarks.results import report
from grader.core.result import Result
from grader.course import Course
from grader.grading import batch
from grader.grading.cache import environment_fingerprint
from grader.grading.cluster import connect, grade_on
from grader.grading.cluster_worker import COURSE
from grader.grading.dispatch import MOST

SAMPLE_S = 2.0


class Cluster:
    """A scheduler and workers as processes of their own; those that are killed are started again."""

    def __init__(self, course: Path, workers: int, folder: Path) -> None:
        self.folder, self.course = folder, course
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        self.scheduler = self._start("dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
        self.workers = [self._worker() for _ in range(workers)]
        self.sessions = [one.pid for one in (self.scheduler, *self.workers)]
        self.kills, self.samples = 0, list[tuple[float, float]]()
        self._ended = threading.Event()

    def _start(self, command: str, *options: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, COURSE: str(self.course), "TMPDIR": str(self.folder)}
        with (self.folder.parent / "cluster.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{command}", *options],
                env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _worker(self) -> subprocess.Popen[bytes]:
        limits = "--nworkers 1 --nthreads 1 --memory-limit 0 --no-nanny --no-dashboard".split()
        place = ["--local-directory", str(self.folder), "--host", "127.0.0.1"]
        return self._start("dask_worker", self.address, *limits, *place)

    @contextlib.contextmanager
    def disturbed(self, every_s: float, chance: random.Random) -> Iterator[None]:
        """Kills a worker at random moments, every `every_s` seconds on average (0: never), and samples the memory."""

        def disturb() -> None:
            began = killed = time.monotonic()
            pause = chance.expovariate(1 / every_s) if every_s else float("inf")
            while not self._ended.wait(SAMPLE_S):
                now = time.monotonic()
                pids = [one.pid for one in (self.scheduler, *self.workers)]
                self.samples.append((now - began, sum(mb for pid in pids for _, mb in soak.family(pid)) + own_mb()))
                if now - killed > pause:
                    place = chance.randrange(len(self.workers))
                    self.workers[place].kill()
                    self.workers[place].wait()
                    self.workers[place] = self._worker()
                    self.sessions.append(self.workers[place].pid)
                    killed, pause = now, chance.expovariate(1 / every_s)
                    self.kills += 1

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def stop(self) -> None:
        """End all processes."""
        for one in (*self.workers, self.scheduler):
            one.terminate()
        for one in (*self.workers, self.scheduler):
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(20)
            one.kill()
            one.wait()

    def left(self) -> list[int]:
        """Processes that are there after all workers have ended or were killed."""
        end = time.monotonic() + 10
        while (found := [pid for one in self.sessions for pid, _ in soak.family(one)]) and time.monotonic() < end:
            time.sleep(0.2)
        return found


def own_mb() -> float:
    """Resident memory of this process, which is the command that uses the cluster, in MB."""
    return psutil.Process().memory_info().rss / 1e6


def run(course: Course, folder: Path, workers: int, kill_s: float, place: Path) -> tuple[list[Result], float, Cluster]:
    """Grade the class; returns all reported results, seconds since the first, and the cluster."""
    cluster = Cluster(course.home, workers, place)
    results: list[Result] = []
    moments: list[float] = []

    def note(entry: batch.Entry, result: Result) -> None:
        results.append(result)
        moments.append(time.monotonic())

    try:
        with connect(cluster.address, course) as client:
            client.wait_for_workers(workers, timeout=120)
            with cluster.disturbed(kill_s, random.Random(1)):
                entries = batch.find(folder, course)
                grade_on(client, course, entries, note, edition=environment_fingerprint())
    finally:
        cluster.stop()
    return results, moments[-1] - moments[0], cluster


def overhead(tasks: int = 2000) -> float:
    """Seconds that the scheduler and the command spend on a task, as `ClusterRun` submits them, one after another."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, host="127.0.0.1",
                     protocol="tcp://") as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        (worker,) = client.nthreads()
        began = time.monotonic()
        for _ in range(tasks // 20):
            futures = [client.submit(len, "", workers=[worker], pure=False) for _ in range(20)]
            for future in futures:
                future.result()
        return (time.monotonic() - began) / tasks


def main() -> int:
    """Make the class, grade it, and print what was seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--compare", type=int, default=200, help="notebooks to compare two workers with one (0: none)")
    parser.add_argument("--kill", type=float, default=60.0, help="mean seconds between two kills (0: none)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--report", action="store_true", help="write the section of benchmarks/RESULTS.md")
    asked = parser.parse_args()
    hostile.EVERY = 50
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        problems = measure(asked, Path(scratch), lines)
    print("\n".join([*lines, *problems]))
    if asked.report and not problems:
        report("A class on a cluster", __doc__, lines)
    return 1 if problems else 0


def measure(asked: argparse.Namespace, place: Path, lines: list[str]) -> list[str]:
    """Returns what is not as it should be, and appends what was measured to `lines`."""
    from grader.course.build import build

    shutil.copytree(soak.SMALL, place / "course", ignore=shutil.ignore_patterns("build", "exercises"))
    (place / "temporary").mkdir()
    course = Course(place / "course")
    build(course)
    lesson = course.lesson("01_small")
    worth = hostile.make(course, lesson, place / "class", asked.count)
    results, seconds, cluster = run(course, place / "class", asked.workers, asked.kill, place / "temporary")
    problems = soak.wrong([result.to_json() for result in results], worth)
    twice = [name for name, count in Counter(result.learner for result in results).items() if count > 1]
    problems += [f"{name} has two results" for name in twice]
    problems += [f"process {pid} is left" for pid in cluster.left()]
    lines += [
        f"- {asked.count} notebooks, {sum(one.hostile for one in worth.values())} hostile, {asked.workers} workers, "
        f"{cluster.kills} workers killed: {seconds:.0f} s, {60 * len(results) / seconds:.0f} notebooks a minute. "
        f"Lost: {len(worth) - len({one.learner for one in results})}. Two results: {len(twice)}."
    ]
    quarters = [cluster.samples[len(cluster.samples) * i // 4 : len(cluster.samples) * (i + 1) // 4] for i in range(4)]
    memory = [statistics.median(mb for _, mb in one) for one in quarters if one]
    lines.append(f"- Median memory by quarters, MB: {', '.join(f'{mb:.0f}' for mb in memory)}.")
    if memory[-1] > 1.3 * memory[1]:
        problems.append("memory grew by more than 30% from the second to the last quarter")
    if asked.compare:
        hostile.EVERY = 10**9
        hostile.make(course, lesson, place / "honest", asked.compare)
        rates = []
        for workers in (1, 2):
            shutil.rmtree(course.home / "build" / "graded")
            results, seconds, _ = run(course, place / "honest", workers, 0, place / "temporary")
            rates.append((len(results) - MOST) / seconds)  # those of the first batch came at the start
        efficiency = rates[1] / 2 / rates[0]
        each = overhead()
        per_batch = MOST / rates[0]
        lines += [
            f"- {asked.compare} honest notebooks: {60 * rates[0]:.0f} a minute on one worker, {60 * rates[1]:.0f} on "
            f"two; efficiency {efficiency:.0%} (load of the machine: {os.getloadavg()[0]:.1f}).",
            f"- Overhead per task of scheduler and command: {1000 * each:.1f} ms; a batch of {MOST} notebooks takes "
            f"{per_batch:.1f} s on a core. So one scheduler keeps up to {per_batch / each:.0f} cores busy; of 1,000 "
            f"cores, {min(1.0, per_batch / each / 1000):.0%} would be used (calculated, not measured).",
        ]
    return problems


if __name__ == "__main__":
    sys.exit(main())
