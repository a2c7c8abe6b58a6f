"""Run a notebook in a fresh kernel and print which of its checks pass.

`python -m grader.checks NOTEBOOK` is for learners, and for CI in a learner's own repository. The result is not a grade,
because the owner of the notebook controls the run too. Exits with 0 if every check passes or is skipped, with 1 if one
does not, and with 2 if there is nothing to run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from grader.checks.execute import execute
from grader.core import points
from grader.core.layout import SOURCE
from grader.core.notebook import checksum, grade_id, is_answer, is_check, is_public_check, nbgrader, text
from grader.core.result import MARKS, CheckResult, Result, document
from grader.core.symbols import check_title
from grader.core.text import LogStream, legible, stop_commands

CELL_S = 120  # seconds for one cell, compiling included
MAX_MESSAGE = 2_000  # characters
# By the class of the exception that ended a check.
STATUS = {"NotAttempted": "not attempted", "NotDefined": "not attempted", "Skipped": "skipped", "CheckBroken": "error"}


class NothingToRun(Exception):
    """No notebook with checks; the text states what was looked for."""


def read(asked: str) -> tuple[Path, Any]:
    """Returns the notebook at a path, or that of a lesson's id where learners keep it, as nbclient takes it.

    Raises NothingToRun where there is none, or it has no check.
    """
    import nbformat

    places = [Path(asked)]
    if not asked.endswith(".ipynb"):
        places = [Path(folder) / asked / f"{asked}.ipynb" for folder in ("work", "exercises")]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        if Path(asked).exists():
            raise NothingToRun(f"{asked} is not a notebook. Pass a file that ends with .ipynb, or the id of a lesson.")
        found = [one.stem for folder in ("work", "exercises") for one in Path(folder).glob("*/*.ipynb")]
        lessons = ", ".join(sorted({one for one in found if re.match(r"\d\d_", one)}))
        here = f" Lessons here: {lessons}." if lessons else ""
        raise NothingToRun(f"There is no notebook {' or '.join(map(str, places))}.{here}")
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    except Exception as problem:  # nbformat's own errors have no common class
        raise NothingToRun(f"{path} is not a notebook: {str(problem).splitlines()[0][:200]}") from None
    if not any(map(is_public_check, notebook.cells)):
        raise NothingToRun(f"{path} contains no checks.")
    return path, notebook


def run(notebook: Any, folder: Path) -> str:
    """Runs every cell in order, past errors too, and fills in outputs; returns what ended the run early, or ""."""
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    os.environ.pop("JPY_SESSION_NAME", None)  # the notebook of a front end that started us; our kernel belongs to none
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    try:
        execute(notebook, folder, cell_s=CELL_S, allow_errors=True)
    except CellTimeoutError:
        return f"The run was stopped because an earlier cell took more than {CELL_S} s."
    except DeadKernelError:
        return "An earlier cell ended the kernel."
    return ""


def verdict(cell: Any, ended: str) -> tuple[str, str]:
    """Returns a check's status and message, "" where it passed; `ended` is what ended the run early."""
    if nbgrader(cell).get("checksum", checksum(cell)) != checksum(cell):
        return "failed", "This check was edited. Grading uses the original check."
    error = next((output for output in cell.outputs if output.output_type == "error"), None)
    if error is not None:
        ours = error.ename in STATUS or error.ename == "CheckFailed"
        return STATUS.get(error.ename, "failed"), error.evalue if ours else f"{error.ename}: {error.evalue}"
    if cell.execution_count is None:
        return "failed", ended or "It did not run."
    return "passed", ""


def result_of(notebook: Any, ended: str, lesson: str, duration_s: float) -> Result:
    """Returns the checks of a notebook that ran; hidden ones are skipped."""
    checks, exercise = [], ""
    for cell in notebook.cells:
        if is_answer(cell):
            exercise = grade_id(cell) or ""
        if not is_check(cell):
            continue
        hidden = not is_public_check(cell)
        status, message = ("skipped", "It runs only when the notebook is graded.") if hidden else verdict(cell, ended)
        possible = nbgrader(cell).get("points")
        max_points = float(possible) if isinstance(possible, int | float) else 0.0
        check = CheckResult(
            id=grade_id(cell) or "",
            exercise=exercise,
            title="Hidden check" if hidden else check_title(text(cell)),
            status=status,
            points=max_points if status == "passed" else 0.0,
            max_points=max_points,
            message=legible(message, MAX_MESSAGE),
            hidden=hidden,
        )
        checks.append(check)
    possible = points.total(check.max_points for check in checks)
    notes = (ended,) if ended else ()
    return Result("you", lesson, tuple(checks), possible, duration_s=duration_s, notes=notes)


def show(result: Result) -> bool:
    """Prints a line for each public check, and its message, what fails first; returns whether all pass or are
    skipped."""
    public = [check for check in result.checks if not check.hidden]
    for check in sorted(public, key=lambda check: check.status == "passed"):
        print(f"{MARKS[check.status][0]} {check.id}: {check.title}".rstrip(": "))
        for line in check.message.splitlines():
            print(f"    {line}")
    hidden = len(result.checks) - len(public)
    passed = sum(check.status in ("passed", "skipped") for check in public)
    later = (
        f" {points.phrase(hidden, 'hidden check')} {'runs' if hidden == 1 else 'run'} when it is graded."
        if hidden
        else ""
    )
    print(f"{result.lesson}: {passed} of {len(public)} checks pass.{later}")
    return passed == len(public)


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m grader.checks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebook", help="a notebook, or a lesson id such as 05_vmap, found in work/ or exercises/")
    parser.add_argument(
        "--json", metavar="FILE", help="also write the result to FILE, in the format of docs/results.md"
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may have no tick
    stop_commands(sys.stderr)
    with contextlib.redirect_stdout(LogStream(sys.stdout)), contextlib.redirect_stderr(LogStream(sys.stderr)):
        return check(parser)


def check(parser: argparse.ArgumentParser) -> int:
    """Runs the command as it was called; returns its exit status."""
    try:
        asked = parser.parse_args()
        path, notebook = read(asked.notebook)
    except NothingToRun as problem:
        print(problem, file=sys.stderr)
        return 2
    began = time.monotonic()
    ended = run(notebook, path.parent)
    result = result_of(notebook, ended, path.stem, time.monotonic() - began)
    if asked.json:
        Path(asked.json).write_text(document([result]), encoding="utf-8")
    return 0 if show(result) else 1


if __name__ == "__main__":
    sys.exit(main())
