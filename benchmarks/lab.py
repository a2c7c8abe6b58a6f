"""Times a cold `make lab`, from the command to a page that can be used, in a fresh copy of the course: `make bench`.

The environment is there, as after `make setup`; nothing else is: no copies under work/, no settings or workspace of
JupyterLab's, a browser with an empty profile, whose own start is in the time. The clock runs from the command until
JupyterLab has opened the first lesson and its kernel waits for a cell. Three runs one after another; the median counts.
Files may be in the machine's memory from the run before.
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

TITLE = "From `make lab` to a page"
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
    command.write_text(f"#!{venv}/bin/python\nfrom grader.cli import main\nmain()\n")
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
        f"A cold `make lab`: {usable:.1f} s to a lesson that can be run ({opened:.1f} s until the browser is called); "
        f"runs: {each} s. The bar is {BAR_S:.0f} s."
    ]


def main() -> None:
    """Measure, print the line, and write it down."""
    lines = measure()
    print("\n".join(lines))
    results.report(TITLE, __doc__, lines)


if __name__ == "__main__":
    main()
