"""Times a cold `make lab`, from the command to a lesson that can be run, in a fresh copy of the course: `make bench`.

The environment is complete, as after `make setup`. There are no copies in `work/`, no settings or workspace of
JupyterLab, and the browser has an empty profile. The time is from the command until JupyterLab has opened the first
lesson and its kernel is ready for a cell, including the start of the browser. The median of three runs is reported.
Files can be in the operating system's cache from the run before.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from benchmarks import results

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]  # the desk that tests drive, and the set-up's own stamp
import desk  # noqa: E402
import environment  # noqa: E402

TITLE = "Starting `make lab`"
RUNS = 3
BAR_S = 15.0


def set_up(folder: Path) -> Path:
    """A copy of the course with a finished `.venv`, whose packages are this Python's."""
    course = desk.copy_course(folder)
    venv = course / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = next((venv / "lib").glob("python*/site-packages"))
    (site / "packages.pth").write_text(f"{course}\n{sysconfig.get_path('purelib')}\n")
    # JupyterLab's pages, settings and kernels are found below the environment's own prefix.
    for name in ("share", "etc"):
        shutil.copytree(Path(sys.prefix) / name, venv / name, dirs_exist_ok=True)
    command = venv / "bin" / "grader"
    command.write_text(f"#!{venv}/bin/python\nfrom grader.__main__ import main\nmain()\n")
    command.chmod(0o755)
    (venv / environment.STAMP).write_text(json.dumps(environment.wanted(course, "cpu")))
    return course


def cold() -> tuple[float, float]:
    """Seconds from `make lab` until it opens a page, and until the lesson on it can be run."""
    with tempfile.TemporaryDirectory() as temporary:
        course = set_up(Path(temporary))
        began = time.perf_counter()
        with desk.lab(course, command=["make", "--silent", "lab"]) as address:
            opened = time.perf_counter() - began
            with desk.page(address) as page:
                desk.Notebook.front(page, desk.lab_path(address))
                return opened, time.perf_counter() - began


def measure() -> list[str]:
    """The lines of the report."""
    runs = [cold() for _ in range(RUNS)]
    opened, usable = (statistics.median(column) for column in zip(*runs, strict=True))
    each = ", ".join(f"{seconds:.1f}" for _, seconds in runs)
    return [
        f"The lesson can be run after {usable:.1f} s. The browser is started after {opened:.1f} s. Single runs: "
        f"{each} s. The target is {BAR_S:.0f} s."
    ]


def main() -> None:
    """Measure, print the line, and write it down."""
    lines = measure()
    print("\n".join(lines))
    results.report(TITLE, __doc__, lines)


if __name__ == "__main__":
    main()
