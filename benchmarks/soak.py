"""Grades a large class, one in ten of it hostile, in one run of `grader grade`; watches memory and time: `make soak`.

The course is tests/courses/small, whose answers are given in every way it knows, each with a comment of its own. Ends
with 1 when a notebook is lost, an honest one is not judged right, a hostile one costs more than its exercise, or
something is left behind. Memory is the sum of PSS over the command and all that it started: pages that processes share
count once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
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

from grader.course import Course, Lesson, filled
from grader.course.build import exercises_path

ROOT = Path(__file__).resolve().parents[1]
COURSE = ROOT / "tests" / "courses" / "small"
LESSON = "01_small"
EVERY = 10
SAMPLE_S = 1.0
# What a hostile answer does when its cell runs, and when it is called. Any answer of the course stands between the two.
CELLS = {
    "exits": "import os\nos._exit(0)",
    "kills itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "closes files": "import os\nos.closerange(0, 4096)",
    "segfault": "import ctypes\nctypes.string_at(0)",
    "forks": "import os, time, warnings\nwarnings.simplefilter('ignore')\n"
    "for _ in range(20):\n    if not os.fork():\n        time.sleep(600)",
    "threads": "import threading, time\n"
    "for _ in range(20):\n    threading.Thread(target=time.sleep, args=(600,)).start()",
    "prints": "for _ in range(50):\n    print('x' * 1_000_000)",
    "fills its folder": "with open('full', 'wb') as stream:\n    stream.write(bytes(40 << 20))",
    "says too much": "raise ValueError('word ' * 1_000_000)",
}
CALLS = {
    "endless loop": "    while True:\n        pass",
    "endless program": "    return jax.lax.while_loop(lambda y: True, lambda y: y + 1, 0)",
    "exits when called": "    import os\n    os._exit(0)",
    "memory": "    hog = [np.ones(64 << 20, np.uint8) for _ in range(12)]\n    return hog[0][0]",
    "flood": "    return np.zeros(300 << 20, np.uint8)",
    "recursion": "    return {name}(x)",
    "threads without end": "    import threading\n    while True:\n        threading.Thread(target=int).start()",
}


@dataclass(frozen=True)
class Expected:
    """What a notebook is worth: which exercises earn all, and which less; an exercise in neither may earn anything."""

    full: frozenset[str]
    less: frozenset[str]


def answers(lesson: Lesson, number: int, chance: random.Random) -> tuple[dict[str, str], Expected]:
    """The answers of the notebook with this number, and what they are worth."""
    given: dict[str, str] = {}
    full: set[str] = set()
    for exercise in lesson.exercises:
        given[exercise.id] = chance.choice([exercise.reference, *(right.source for right in exercise.right)])
        full.add(exercise.id)
    target = chance.choice(lesson.exercises)
    if number % EVERY == 0:
        kinds = [*CELLS, *CALLS]
        given[target.id] = hostile(kinds[number // EVERY % len(kinds)], given[target.id], target.names[0])
        spoilt, less = {target.id}, set[str]()
    elif number % 3 == 0:
        given[target.id] = chance.choice(target.wrong).source
        spoilt = less = {target.id}
    elif number % 7 == 0:
        del given[target.id]
        spoilt = less = {target.id}
    else:
        spoilt, less = set(), set()
    commented = {name: f"{source.rstrip()}\n# notebook {number}\n" for name, source in given.items()}
    return commented, Expected(frozenset(full - spoilt), frozenset(less))


def hostile(kind: str, answer: str, name: str) -> str:
    """An answer that does something to the process that it runs in."""
    if kind in CELLS:
        return f"{answer}\n{CELLS[kind]}\n"
    return f"def {name}(x):\n{CALLS[kind].format(name=name)}\n"


def make(root: Path, folder: Path, count: int) -> dict[str, Expected]:
    """Write the class; what each learner's notebook is worth."""
    course, chance = Course(root), random.Random(count)
    lesson = course.lesson(LESSON)
    worth = {}
    for number in range(count):
        given, worth[f"learner-{number:04}"] = answers(lesson, number, chance)
        notebook = filled.fill(exercises_path(course, LESSON), given)
        filled.write(notebook, folder / f"learner-{number:04}" / LESSON / f"{LESSON}.ipynb")
    return worth


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
    count: int = parser.parse_args().count
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        shutil.copytree(COURSE, place / "course", ignore=shutil.ignore_patterns("build", "exercises"))
        grader = [sys.executable, "-m", "grader", "--course", str(place / "course")]
        subprocess.run([*grader, "build"], check=True, stdout=subprocess.DEVNULL)
        worth = make(place / "course", place / "class", count)
        (place / "temporary").mkdir()
        watch, began = Watch(), time.time()
        command = [*grader, "grade", str(place / "class"), "--json", str(place / "results.json")]
        running, complaint = watch.run(command, {**os.environ, "TMPDIR": str(place / "temporary")})
        seconds = time.time() - began
        problems = [complaint] if running.returncode or complaint else []
        if (place / "results.json").exists():
            problems += wrong(json.loads((place / "results.json").read_text())["results"], worth)
        time.sleep(1)
        problems += [f"process {pid} is left" for pid, _ in family(running.pid)]
        problems += [f"{path} is left" for path in (place / "temporary").iterdir()]
        moments = sorted(path.stat().st_mtime - began for path in (place / "course" / "build" / "graded").glob("*/*"))
    report(count, seconds, moments, watch)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


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
