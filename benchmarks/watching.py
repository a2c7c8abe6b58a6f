"""Times `grader watch` from a save to the displayed verdict, and its processor time while idle: `make bench`.

A simulated learner works on the exercises of a lesson in order, and saves a wrong and a right answer, each twice. The
second save counts, because a learner who works on an exercise has saved it before. Earlier exercises are solved, later
ones are untouched.

The *own time* of an answer is that of the same cells and checks in a fork of a warm process (`benchmarks.floor`) with
the same compiler settings. As in a learner's process, the code of single operations is cached, and the answer's own
programs are compiled. The *latency* is the rest of the time from the save to the verdict.

No data about the course's own answers is cached at the start, and operations are cached during the run. The own times
are measured last, so the latency of an answer that runs operation by operation appears longer than it is. The idle
processor time is that of the command and its child processes, over twenty seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks import grading, results
from benchmarks.others import ROOT
from grader.course import Course, Exercise, Lesson
from grader.course.build import exercises_path
from tools.fill import fill, write

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]  # the terminal that tests look at, and what it fills in
import desk  # noqa: E402
import watching  # noqa: E402

TITLE = "The latency of `grader watch`"
LESSONS = ("05_vmap", "08_control_flow", "16_sharding")
IDLE_S = 20.0
SAVES = 2
BAR_S = 0.5
MOST_S = 300.0


def saved(source: str, time: int) -> str:
    """An answer as it is saved for the second, third ... time: the same, and another text."""
    return f"{source}\n# save {time}\n"


def answers(lesson: Lesson, exercise: Exercise, source: str) -> dict[str, str]:
    """The earlier exercises right, and this one as given."""
    earlier = lesson.exercises[: lesson.exercises.index(exercise)]
    return {**{one.id: saved(one.reference, SAVES - 1) for one in earlier}, exercise.id: source}


def shown(terminal: watching.Terminal, course: Course, lesson: Lesson, exercise: Exercise, source: str) -> float:
    """Seconds from a save to its verdict."""
    place = lesson.exercises.index(exercise) + 1
    mark = "✓" if source.startswith(exercise.reference) else "✗"
    notebook = fill(exercises_path(course, lesson.id), answers(lesson, exercise, source))
    draft = write(notebook, course.root / "draft.ipynb")
    began = time.perf_counter()
    draft.replace(course.root / "work" / lesson.id / f"{lesson.id}.ipynb")
    while time.perf_counter() - began < MOST_S:
        rows = [row for row in terminal.screen if row.startswith(f"▸ {mark} {place} ")]
        if rows and not rows[0].endswith("..."):
            return time.perf_counter() - began
        time.sleep(0.002)
    raise TimeoutError("\n".join(terminal.screen))


def saves(terminal: watching.Terminal, course: Course, lesson: Lesson) -> dict[str, list[float]]:
    """Seconds for each exercise: a wrong answer, a right one."""
    found = {}
    for exercise in lesson.exercises:
        wrong = next(one.source for one in exercise.wrong)
        for again in range(SAVES):
            told = [saved(source, again) for source in (wrong, exercise.reference)]
            found[exercise.id] = [shown(terminal, course, lesson, exercise, source) for source in told]
            time.sleep(1)
    return found


def idle(terminal: watching.Terminal) -> float:
    """Share of a core that the command and all that it started use while nothing happens."""
    time.sleep(5)
    before = _processor(terminal)
    time.sleep(IDLE_S)
    return (_processor(terminal) - before) / IDLE_S


def _processor(terminal: watching.Terminal) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in terminal.pids()]
    return sum(one.user + one.system for one in times)


def own(root: Path, name: str) -> dict[str, list[float]]:
    """Seconds in a bare fork: a wrong answer and a right one of each exercise. In a process without threads only."""
    from benchmarks import floor
    from grader.core.notebook import read_bytes, read_submission
    from grader.grading.executors import CompileCache

    course = Course(root)
    lesson = course.lesson(name)
    found: dict[str, list[float]] = {}
    begin = floor.ready(course, lesson, CompileCache.of_our_own(course.root / "build", name).for_learners)
    for exercise in lesson.exercises:
        found[exercise.id] = []
        for source in (exercise.wrong[0].source, exercise.reference):
            notebook = fill(exercises_path(course, name), answers(lesson, exercise, source))
            submission = read_submission(
                read_bytes(write(notebook, root / "own" / name / f"{name}.ipynb")), "you", name
            )
            began = time.perf_counter()
            child = os.fork()
            if child == 0:
                begin()
                floor.score(submission, lesson, only=exercise.id)
                os._exit(0)
            os.waitpid(child, 0)
            found[exercise.id].append(time.perf_counter() - began)
    return found


def measure(lessons: tuple[str, ...]) -> list[str]:
    """The lines of the report."""
    rows, shares = [], []
    with tempfile.TemporaryDirectory() as temporary:
        course = Course(desk.copy_course(Path(temporary)))
        subprocess.run([*grading.GRADER, "--course", str(course.root), "lab", "--no-open"], check=True, cwd=ROOT)
        for name in lessons:
            learner = watching.Desk(course.root, Path(temporary))
            with learner.on_terminal(100, 40) as terminal:
                terminal.shows(" q quit")
                found = saves(terminal, course, course.lesson(name))
                shares.append(idle(terminal))
                terminal.press("q")
                terminal.ends(0)
            command = [sys.executable, "-m", "benchmarks.watching", "--own", str(course.root), name]
            alone = json.loads(subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout)
            rows.append((name, found, alone))
    lines = [
        "| lesson | exercises | save to verdict: median, s | longest, s | own time: median, s "
        "| latency: median, s | longest, s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    everything: list[float] = []
    late: list[str] = []
    for name, found, alone in rows:
        pairs = [(s, o) for one in found for s, o in zip(found[one], alone[one], strict=True)]
        seconds, owns, beyond = [s for s, _ in pairs], [o for _, o in pairs], [s - o for s, o in pairs]
        everything += beyond
        answered = [f"`{one}` ({how})" for one in found for how in ("wrong", "right")]
        late += [f"{one} {s:.2f} s" for one, s in zip(answered, beyond, strict=True) if s > BAR_S]
        lines.append(
            f"| {name} | {len(found)} | {statistics.median(seconds):.2f} | {max(seconds):.2f} "
            f"| {statistics.median(owns):.2f} | {statistics.median(beyond):.2f} | {max(beyond):.2f} |"
        )
    lines += [
        "",
        f"- The median latency of {len(everything)} saves is {statistics.median(everything):.2f} s. The target is "
        f"{BAR_S:g} s. Saves above it: {', '.join(late) or 'none'}.",
        f"- While idle, the command uses {100 * statistics.median(shares):.2f}% of a core. The target is 1%.",
    ]
    return lines


def main() -> None:
    """Measure, print the table, and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lessons", default=",".join(LESSONS))
    parser.add_argument("--own", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--no-write", action="store_true", help="Only print.")
    asked = parser.parse_args()
    if asked.own:
        print(json.dumps(own(Path(asked.own[0]), asked.own[1])))
        return
    lines = measure(tuple(asked.lessons.split(",")))
    print("\n".join(lines))
    if not asked.no_write:
        results.report(TITLE, __doc__, lines)


if __name__ == "__main__":
    main()
