"""Times `grader grade` against stock `nbgrader autograde` on the same submissions, in one run: `make bench`.

Both grade the example class's notebooks of one lesson from their files to stored scores, each in its own way: the
grader on as many processes as there are cores, nbgrader one notebook after another, each in a kernel of its own.
Start-up is told apart, as a class pays it once. An endless loop is given the same 10 s by both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from grader.course import Course
from grader.course.build import source_path

ROOT = Path(__file__).resolve().parents[1]
SUBMITTED = ROOT / "examples" / "submitted"
NBGRADER_CONFIG = """\
c = get_config()
c.CourseDirectory.root = {root!r}
c.ExecutePreprocessor.timeout = 10
c.Autograde.ignore_checksums = True
"""


def run(command: list[str], cwd: Path, environment: dict[str, str], allowed: tuple[int, ...] = (0,)) -> float:
    """Seconds on the clock. Raises RuntimeError with what the command said when it fails."""
    began = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in allowed:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return time.perf_counter() - began


def environment() -> dict[str, str]:
    """nbgrader calls alembic by its name, so the environment's commands have to be found."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
    }


def ours(folder: Path, lesson: str, scratch: Path) -> tuple[float, float]:
    """Seconds for the whole class, and seconds for one untouched notebook: the latter is start-up."""
    command = [sys.executable, "-m", "grader", "grade", "--force"]
    whole = run([*command, str(folder), "--lesson", lesson, "--json", str(scratch / "ours.json")], ROOT, environment())
    one = scratch / "one"
    shutil.copytree(folder / "untouched", one / "untouched")
    return whole, run([*command, str(one), "--lesson", lesson], ROOT, environment())


def stock(folder: Path, lesson: str, scratch: Path) -> tuple[float, int]:
    """Seconds for `nbgrader autograde` of the class in a course of its own, and how many notebooks it scored."""
    root = scratch / "stock"
    shutil.copytree(source_path(Course(ROOT), lesson).parent, root / "source" / lesson)
    for learner in sorted(folder.iterdir()):
        if (learner / lesson).is_dir():
            shutil.copytree(learner / lesson, root / "submitted" / learner.name / lesson)
    (root / "nbgrader_config.py").write_text(NBGRADER_CONFIG.format(root=str(root)))
    nbgrader = [sys.executable, "-m", "nbgrader"]
    run([*nbgrader, "generate_assignment", lesson, "--force"], root, environment())
    seconds = run([*nbgrader, "autograde", lesson], root, environment(), allowed=(0, 1))
    return seconds, len(list((root / "autograded").glob("*/*/*.ipynb")))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lesson", default="05_vmap")
    lesson = parser.parse_args().lesson
    run([sys.executable, "-m", "grader", "build", lesson], ROOT, environment())
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        whole, start = ours(SUBMITTED, lesson, scratch)
        count = len(json.loads((scratch / "ours.json").read_text())["results"])
        seconds, graded = stock(SUBMITTED, lesson, scratch)
    running = max(whole - start, 1e-9)
    print(f"{count} submissions of {lesson} on {os.cpu_count()} cores")
    print(f"  grader grade        {whole:7.1f} s, {start:.1f} s of them to start: then {running / count:.2f} s each")
    print(f"  nbgrader autograde  {seconds:7.1f} s: {seconds / count:.2f} s each ({graded} of {count} got a score)")
    print(f"  ratio               {seconds / whole:7.1f} times as fast, {seconds / running:.1f} times once started")


if __name__ == "__main__":
    main()
