"""Times `grader grade` against other graders and against the floor on the same class, in one run: `make bench`.

Everybody gets the same submissions of one lesson (`benchmarks.classroom`) and goes from files to stored scores:
the grader and the floor on as many processes as there are cores, the others one notebook after another, each in a
kernel of its own, as they do. The grader and the floor run three times in turn, and their medians count; the others
take minutes, and run once. The lesson is proved first, as an instructor would: from then on the programs of its own
answers are known. One changed notebook is graded by a grader that is already open. The table goes to the
terminal and to benchmarks/RESULTS.md.
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

TITLE = "How fast grading is"
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
    opening = {"root": str(ROOT), "secret": secret(course)}
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
        rows = [("`grader grade`", first, count), ("floor: bare forks", floor, count)]
        if stock:
            rows.append(("stock `nbgrader autograde`", *others.nbgrader(folder, lesson, scratch)))
            rows.append((f"`otter run` ({others.OTTER})", *others.otter(folder, lesson, scratch)))
        again, opened = changed(folder, lesson)
    lines = [
        f"{count} submissions of {lesson} ({points:g} points in all), {os.cpu_count()} cores.",
        "",
        "| grader | seconds | each | a minute | scored | the grader is |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, seconds, scored in rows:
        ratio = "" if name == rows[0][0] else f"{seconds / first:.1f} times as fast"
        lines.append(
            f"| {name} | {seconds:.1f} | {seconds / count:.2f} | {60 * count / seconds:.0f} | {scored} | {ratio} |"
        )
    lines += [
        "",
        f"Of the grader's seconds, {start:.1f} are its start: then {(first - start) / count:.2f} s a submission, "
        f"{first / floor:.2f} times the floor.",
        f"One changed notebook, right in everything, with a grader that is open: {again:.2f} s "
        f"(the first one after opening, {opened:.2f} s).",
        f"Runs of the grader: {', '.join(f'{s:.1f}' for s in mine)} s; of the floor: "
        f"{', '.join(f'{s:.1f}' for s in floors)} s.",
    ]
    assert len(learners) == count
    return lines


def main() -> None:
    """Measure, print the table, and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lesson", default="05_vmap")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--no-others", action="store_true", help="Only the grader and the floor; nothing is written.")
    asked = parser.parse_args()
    lines = measure(asked.lesson, asked.count, not asked.no_others)
    print("\n".join(lines))
    if not asked.no_others:
        results.report(TITLE, __doc__, lines)


if __name__ == "__main__":
    main()
