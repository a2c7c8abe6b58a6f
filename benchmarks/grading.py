"""Times `grader grade`, other graders and a lower bound on the same class, in one run: `make bench`.

Each grader grades the same submissions of one lesson (`benchmarks.classroom`). The time is from the submitted files to
stored scores.

- `grader grade` and the lower bound use one process per core. The lower bound (`benchmarks.floor`) runs the same cells
  and checks in forks of a warm process, without confinement. Both run three times, in turn, and the table shows the
  median. The grader runs hidden checks in a second process, which runs the cells again; the lower bound does not.
- nbgrader and otter grade one notebook after another, each in its own kernel, as they do by default. They take minutes,
  so they run once.

Before the first run, `grader prove` tests the lesson, as an instructor would. The programs of the course's own answers
are therefore cached. The changed notebook is graded by a grader that is already running.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import classroom, others, results
from benchmarks.others import ROOT, run
from grader.course import Course

TITLE = "Grading a class"
GRADER = [sys.executable, "-m", "grader"]
WARM = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def grade(folder: Path, lesson: str, scratch: Path) -> float:
    """Seconds for the whole class, nothing taken from an earlier run's results."""
    words = ["grade", str(folder), "--lesson", lesson, "--force", "--json", str(scratch / "ours.json")]
    return run([*GRADER, *words], ROOT)


def changed(folder: Path, lesson: str) -> tuple[float, float]:
    """Seconds from a changed notebook to its result with an open desk: median of five, and the floor's for the same."""
    from grader.grading.batch import imports, secret
    from grader.grading.pool import Pool

    course = Course(ROOT)
    learners = sorted(path for path in folder.iterdir() if path.name.startswith("right"))[:6]
    opening = {"home": str(ROOT), "secret": secret(course)}
    seconds = []
    with Pool("grader.grading.server:serve", opening, 1, imports(course, [lesson])) as desk:
        for learner in learners:
            request = {"path": str(learner / lesson / f"{lesson}.ipynb"), "learner": learner.name, "lesson": lesson}
            began = time.perf_counter()
            desk.map([request])
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:]), seconds[0]


def measure(lesson: str, count: int, stock: bool) -> list[str]:
    """The lines of the report."""
    course = Course(ROOT)
    run([*GRADER, "build", lesson], ROOT)
    run([*GRADER, "prove", lesson, "--no-mutants"], ROOT)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        folder, one = scratch / "class", scratch / "one"
        learners = classroom.make(course, lesson, folder, count)
        shutil.copytree(ROOT / "exercises" / lesson, one / "untouched" / lesson)
        mine, floors, starts = [], [], []
        for _ in range(3):
            mine.append(grade(folder, lesson, scratch))
            floors.append(run([sys.executable, "-m", "benchmarks.floor", str(folder), lesson], ROOT, WARM))
            starts.append(grade(one, lesson, scratch))
        grade(folder, lesson, scratch)
        points = sum(result["score"] for result in json.loads((scratch / "ours.json").read_text())["results"])
        first, floor, start = statistics.median(mine), statistics.median(floors), statistics.median(starts)
        rows = [("`grader grade`", first, count), ("lower bound", floor, count)]
        if stock:
            rows.append(("stock `nbgrader autograde`", *others.nbgrader(folder, lesson, scratch)))
            rows.append((f"`otter run` ({others.OTTER})", *others.otter(folder, lesson, scratch)))
        again, opened = changed(folder, lesson)
    lines = [
        f"{count} submissions of {lesson} ({points:g} points in all), {os.cpu_count()} cores.",
        "",
        "| grader | total, s | per notebook, s | notebooks per minute | scored | relative time |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, seconds, scored in rows:
        ratio = f"{seconds / first:.1f}"
        lines.append(
            f"| {name} | {seconds:.1f} | {seconds / count:.2f} | {60 * count / seconds:.0f} | {scored} | {ratio} |"
        )
    lines += [
        "",
        f"- `grader grade` takes {start:.1f} s to start, then {(first - start) / count:.2f} s per notebook. Its total "
        f"is {first / floor:.2f} times the lower bound.",
        f"- A running grader takes {again:.2f} s for a changed notebook whose answers are all right. The first "
        f"notebook after its start takes {opened:.2f} s.",
        f"- Single runs of `grader grade`: {', '.join(f'{s:.1f}' for s in mine)} s. Single runs of the lower bound: "
        f"{', '.join(f'{s:.1f}' for s in floors)} s.",
    ]
    assert len(learners) == count
    return lines


def main() -> None:
    """Measure, print the table, and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lesson", default="05_vmap")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument(
        "--no-others", action="store_true", help="Time only `grader grade` and the lower bound; write nothing."
    )
    asked = parser.parse_args()
    lines = measure(asked.lesson, asked.count, not asked.no_others)
    print("\n".join(lines))
    if not asked.no_others:
        results.report(TITLE, __doc__, lines)


if __name__ == "__main__":
    main()
